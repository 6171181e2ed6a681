"""`kaishare advise`: the share that each size or workload should have, from the memory that its pods used."""
