//go:build !race

package moe_test

const slow = 1
