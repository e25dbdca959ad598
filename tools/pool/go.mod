module tandem/tools/pool

go 1.26.8
