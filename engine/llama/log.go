package llama

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/hybridgroup/yzma/pkg/utils"
)

// logger receives what llama.cpp prints. The C callback is one per process, so
// the last Load with a Logger wins.
var logger atomic.Pointer[slog.Logger]

// routeLog sends llama.cpp's log to logger at debug level, or nowhere.
func routeLog() {
	llama.LogSet(purego.NewCallback(func(_ int32, text unsafe.Pointer, _ uintptr) uintptr {
		log := logger.Load()
		if log == nil || text == nil || !log.Enabled(context.Background(), slog.LevelDebug) {
			return 0
		}
		if line := strings.TrimSpace(utils.BytePtrToString((*byte)(text))); len(line) > 1 {
			log.Debug(line, "from", "llama.cpp")
		}
		return 0
	}))
}
