"""`kaishare why`: one pod's story, with the cause that holds it back and what to do."""
