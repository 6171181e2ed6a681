module kaishare/benchmarks/go-reviews

go 1.22
