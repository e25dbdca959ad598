module tandem.local/fakereplica

go 1.26
