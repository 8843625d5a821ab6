package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// ErrNPM says that npm is not there.
var ErrNPM = errors.New("npm is not on PATH: install Node.js 20 or newer, or put llama.cpp's libraries into a folder and name it with --lib or WEIR_LIB")

// fetch runs npm ci in work and returns the folder with p's library files.
// npm verifies the integrity hash.
func fetch(ctx context.Context, work string, p pkg) (string, error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", ErrNPM
	}
	manifest, lock, err := p.manifests()
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(work, "package.json"), manifest, 0o644); err != nil {
		return "", fmt.Errorf("write npm manifest: %w", err)
	}
	if err := os.WriteFile(filepath.Join(work, "package-lock.json"), lock, 0o644); err != nil {
		return "", fmt.Errorf("write npm lockfile: %w", err)
	}
	cmd := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = work
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", fmt.Errorf("npm ci for %s%s %s: %w: %s", scope, p.name, p.Version, err, tail(stderr.String(), 400))
	}
	dir := filepath.Join(work, "node_modules", filepath.FromSlash(scope+p.name), "bins", p.name)
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("package %s holds no libraries: %w", p.name, err)
	}
	return dir, nil
}

// tail keeps the end of npm's message, where its cause stands, on one line.
func tail(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > n {
		s = "..." + s[len(s)-n:]
	}
	return s
}
