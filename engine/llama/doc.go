// Package llama runs GGUF models with llama.cpp, loaded at run time through
// github.com/hybridgroup/yzma, without cgo. It implements engine.Runner.
package llama
