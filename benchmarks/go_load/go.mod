module kaishare/benchmarks/go-load

go 1.22
