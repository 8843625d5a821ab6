// Package moe is Weir's own runner for small models: dense (GGUF architecture
// llama) and mixture of experts (qwen3moe), weights of F32, F16 or Q8_0. It is
// what expert balancing runs on: experts lie in shards (engine/moe/shard),
// every choice of the gate is counted (experts/load), and experts move from
// shard to shard while tokens flow.
//
// A token's result depends on its sequence alone: not on the batch, the
// placement, the number of threads, nor on whether the build has SIMD. So text
// is bit-identical under every placement, during a move, and after the loss of
// a shard whose experts have a replica. LASER-style routing (Options.Gate)
// gives this up, and is off by default.
package moe
