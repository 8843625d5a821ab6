// Package models holds the two bundled models, hub-edge and hub-cloud, their
// chat template and their calibration set. MODEL_CARD.md says what they are.
package models

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:embed hub-edge-f16.gguf hub-cloud-moe-q8_0.gguf
var files embed.FS

// Context is the number of tokens one sequence of a bundled model gets.
// Quality is promised up to about 320 tokens only.
const Context = 2048

// ErrUnknown says that no bundled model has the name.
var ErrUnknown = errors.New("no such bundled model")

type bundled struct{ name, file, sum string }

var table = []bundled{
	{"hub-edge", "hub-edge-f16.gguf", "54993fa75eba44aedb23ce711f8f529bec844f7fcc05b04fef27076243f581c0"},
	{"hub-cloud", "hub-cloud-moe-q8_0.gguf", "c865ccf024254f00c3a4e96313fb5118305c7cc1c020c2b336225684c4dae8f2"},
}

// Names lists the bundled models.
func Names() []string {
	names := make([]string, len(table))
	for i, b := range table {
		names[i] = b.name
	}
	return names
}

// Bundled reports whether name is a bundled model.
func Bundled(name string) bool {
	_, err := find(name)
	return err == nil
}

func find(name string) (bundled, error) {
	for _, b := range table {
		if b.name == name {
			return b, nil
		}
	}
	return bundled{}, fmt.Errorf("%w: %q: there are %s", ErrUnknown, name, strings.Join(Names(), ", "))
}

// Open returns the GGUF file of a bundled model.
func Open(name string) ([]byte, error) {
	b, err := find(name)
	if err != nil {
		return nil, err
	}
	return files.ReadFile(b.file)
}

// SHA256 returns the hash of a bundled model's file, in hex.
func SHA256(name string) (string, error) {
	b, err := find(name)
	return b.sum, err
}

// Path returns a file with a bundled model, because llama.cpp reads only
// files. It writes the file into cacheDir unless it is there with the right
// SHA-256; by rename, so that several processes may share the folder.
func Path(name, cacheDir string) (string, error) {
	b, err := find(name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(cacheDir, b.name+"-"+b.sum[:12]+".gguf")
	if sumOfFile(path) == b.sum {
		return path, nil
	}
	data, err := files.ReadFile(b.file)
	if err != nil {
		return "", err
	}
	if sumOf(data) != b.sum {
		return "", fmt.Errorf("bundled model %s is damaged in this binary: build it again", name)
	}
	if err := writeByRename(path, data); err != nil {
		return "", fmt.Errorf("unpack model %s: %w", name, err)
	}
	return path, nil
}

func sumOfFile(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return sumOf(data)
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func writeByRename(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".model-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = bytes.NewReader(data).WriteTo(tmp)
	if err := errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
