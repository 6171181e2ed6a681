"""What each pod may hold on which GPU, and who says so. Pure."""
