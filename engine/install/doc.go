// Package install fetches llama.cpp's libraries with npm, by a lockfile with
// integrity hashes that is part of the binary, and puts them into Weir's
// library folder.
package install
