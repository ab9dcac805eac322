// Package layout has no code. Its test holds the import graph: which package may know which, and which modules the
// bridge may depend on at all.
package layout
