module kaishare/benchmarks/go-webhook

go 1.22
