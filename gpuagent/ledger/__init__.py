"""Where bytes are counted: processes are attributed to pods, and the sums of each GPU are made. Pure."""
