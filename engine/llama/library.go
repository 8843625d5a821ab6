package llama

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/hybridgroup/yzma/pkg/loader"
	"github.com/hybridgroup/yzma/pkg/utils"
	"github.com/jupiterrider/ffi"
	"github.com/weirhq/weir/engine"
)

// abi lists the llama.cpp releases whose C structs equal those of the yzma
// version in go.mod. Any other release could corrupt memory.
var abi = []string{"0.4.", "0.5."}

// InstallHint ends every message about a library that cannot be used.
const InstallHint = "run 'weir engine install'"

// DefaultLibraryDir is where 'weir engine install' puts the libraries: WEIR_LIB,
// else /var/lib/weir/lib for root, else weir/lib under XDG_DATA_HOME or
// ~/.local/share.
func DefaultLibraryDir(getenv func(string) string) string {
	if dir := getenv("WEIR_LIB"); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return systemLibraryDir
	}
	if data := getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, "weir", "lib")
	}
	home := getenv("HOME")
	if home == "" {
		home, _ = os.UserHomeDir() // empty gives a relative folder, as a shell would
	}
	return filepath.Join(home, ".local", "share", "weir", "lib")
}

const systemLibraryDir = "/var/lib/weir/lib"

// FindLibrary returns the folder that holds llama.cpp's libraries. A flag or
// WEIR_LIB decides alone; without them it looks in lib beside the parent of the
// binary (bin/weir, lib/), in DefaultLibraryDir and in /var/lib/weir/lib. The
// error wraps engine.ErrLibrary.
func FindLibrary(flag string, getenv func(string) string) (string, error) {
	var dirs []string
	switch env := getenv("WEIR_LIB"); {
	case flag != "":
		dirs = []string{flag}
	case env != "":
		dirs = []string{env}
	default:
		dirs = defaultDirs(getenv)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(loader.GetLibraryFilename(dir, "llama")); err == nil {
			return filepath.Abs(dir)
		}
	}
	return "", fmt.Errorf("%w: no llama.cpp in %s: %s", engine.ErrLibrary, strings.Join(dirs, ", "), InstallHint)
}

func defaultDirs(getenv func(string) string) []string {
	var dirs []string
	if exe, err := os.Executable(); err == nil {
		if target, err := filepath.EvalSymlinks(exe); err == nil {
			exe = target
		}
		dirs = append(dirs, filepath.Join(filepath.Dir(filepath.Dir(exe)), "lib"))
	}
	dirs = append(dirs, DefaultLibraryDir(getenv))
	if runtime.GOOS != "windows" && dirs[len(dirs)-1] != systemLibraryDir {
		dirs = append(dirs, systemLibraryDir)
	}
	return dirs
}

// library is the one llama.cpp of the process: shared objects cannot be
// unloaded safely, so the first folder wins.
var library struct {
	sync.Mutex
	dir     string
	version string
	api     entryPoints
}

// entryPoints are C functions that yzma lacks or wraps in a way that cannot be
// used with text from outside (a NUL byte would become a null pointer).
type entryPoints struct {
	version, tokenize, setAbort ffi.Fun
	strlen                      ffi.Fun // of the C library; not there on Windows
}

// LoadLibrary loads llama.cpp from dir once per process and returns its
// version, e.g. "0.5.0". Errors wrap engine.ErrLibrary.
func LoadLibrary(dir string) (version string, err error) {
	library.Lock()
	defer library.Unlock()
	if dir, err = filepath.Abs(dir); err != nil {
		return "", fmt.Errorf("%w: %w", engine.ErrLibrary, err)
	}
	if library.dir != "" {
		if library.dir != dir {
			return "", fmt.Errorf("%w: this process already uses %s, not %s", engine.ErrLibrary, library.dir, dir)
		}
		return library.version, nil
	}
	if version, err = probe(dir); err != nil {
		return "", err
	}
	if err := llama.Load(dir); err != nil {
		return "", fmt.Errorf("%w: %s: %w: %s", engine.ErrLibrary, dir, err, InstallHint)
	}
	routeLog()
	llama.Init()
	library.dir, library.version = dir, version
	return version, nil
}

// probe asks the library for its version before anything else is called,
// because a struct of another size would be written past its end.
func probe(dir string) (string, error) {
	file := loader.GetLibraryFilename(dir, "llama")
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("%w: no llama.cpp in %s: %s", engine.ErrLibrary, dir, InstallHint)
	}
	lib, err := loader.LoadLibrary(dir, "llama")
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w: %s", engine.ErrLibrary, file, err, InstallHint)
	}
	if library.api.version, err = lib.Prep("llama_version", &ffi.TypePointer); err != nil {
		return "", fmt.Errorf("%w: %s tells no version, Weir needs %s: %s", engine.ErrLibrary, file, abiNames(), InstallHint)
	}
	var text *byte
	library.api.version.Call(&text)
	version := utils.BytePtrToString(text)
	if !abiFits(version) {
		return "", fmt.Errorf("%w: %s is llama.cpp %s, Weir needs %s: %s", engine.ErrLibrary, file, version, abiNames(), InstallHint)
	}
	library.api.tokenize, err = lib.Prep("llama_tokenize", &ffi.TypeSint32, &ffi.TypePointer, &ffi.TypePointer, &ffi.TypeSint32,
		&ffi.TypePointer, &ffi.TypeSint32, &ffi.TypeUint8, &ffi.TypeUint8)
	if err == nil {
		library.api.setAbort, err = lib.Prep("llama_set_abort_callback", &ffi.TypeVoid, &ffi.TypePointer, &ffi.TypePointer, &ffi.TypePointer)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w: %s", engine.ErrLibrary, file, err, InstallHint)
	}
	library.api.strlen, _ = lib.Prep("strlen", &ffi.TypeUint64, &ffi.TypePointer)
	return strings.TrimSuffix(version, "-dev"), nil
}

func abiFits(version string) bool {
	for _, p := range abi {
		if strings.HasPrefix(version, p) {
			return true
		}
	}
	return false
}

func abiNames() string { return strings.Join(abi, "x or ") + "x" }
