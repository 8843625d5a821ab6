package llama

import (
	"sync/atomic"
	"unsafe"

	"github.com/weirhq/weir/engine"
)

var _ engine.Stopper = (*Runner)(nil)

// aborted is llama_decode's code for a step that was stopped.
const aborted = 2

// StopAt has steps end between two operations of llama.cpp's graph: see
// engine.Stopper. After each of them llama.cpp calls a C function; one in Go would
// wait for Go's scheduler each time. strlen does instead: of the bytes of a flag
// that is 0 it is 0, of one that is 1 (little-endian) it is 1. Where it cannot be
// had steps go to their end.
func (r *Runner) StopAt(flag *atomic.Uint32) {
	if library.api.strlen.Addr == 0 {
		return
	}
	r.stop = flag // llama.cpp's pointer does not keep it
	library.api.setAbort.Call(nil, unsafe.Pointer(&r.ctx), unsafe.Pointer(&library.api.strlen.Addr), unsafe.Pointer(&flag))
}
