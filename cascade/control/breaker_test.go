package control

import (
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	now := time.Unix(1000, 0)
	var b Breaker
	for i := range 3 {
		if !b.Allow(now) {
			t.Fatalf("open after %d failures", i)
		}
		b.Result(false, now)
	}
	if b.Allow(now) || !b.Open(now) {
		t.Fatal("three failures leave it closed")
	}
	now = now.Add(time.Second)
	if !b.Allow(now) {
		t.Fatal("no probe after the pause")
	}
	if b.Allow(now) {
		t.Error("two probes at a time")
	}
	b.Release()
	if !b.Open(now.Add(-time.Nanosecond)) || !b.Allow(now) || b.Allow(now) {
		t.Error("a probe that was called off is not the next call's")
	}
	b.Result(false, now)
	if b.Allow(now.Add(1900 * time.Millisecond)) {
		t.Error("the pause does not double")
	}
	now = now.Add(2 * time.Second)
	if !b.Allow(now) {
		t.Fatal("no second probe")
	}
	b.Result(true, now)
	if !b.Allow(now) || b.Open(now) {
		t.Error("a good probe does not close it")
	}
	b.Result(false, now)
	if b.Open(now) != true {
		t.Error("right after recovery one failure opens it again")
	}
	var mixed Breaker
	for i := range 100 {
		mixed.Result(i%4 != 0, now)
	}
	if mixed.Open(now) {
		t.Error("one failure in four opens it")
	}
}
