"""The admission reviews: read, judged and answered."""
