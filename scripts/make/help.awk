# Prints the documented targets of the make fragments, by section.
BEGIN { FS = ":.*## "; print "usage: make TARGET [VARIABLE=value …]" }
/^##@ / { printf "\n%s\n", substr($0, 5) }
/^[a-z][a-z0-9-]*:.*## / { sub(/:.*/, "", $1); printf "  %-18s %s\n", $1, $2 }
