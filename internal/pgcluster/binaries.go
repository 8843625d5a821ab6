package pgcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// minMajor is the oldest PostgreSQL that Weir's SQL is tried on.
const minMajor = 14

// ErrNoServer says that no usable PostgreSQL server is installed.
var ErrNoServer = errors.New("no PostgreSQL server found")

// Binaries is the folder of one installed PostgreSQL server.
type Binaries struct {
	Dir   string // holds initdb, pg_ctl and postgres
	Major int
}

func (b Binaries) path(name string) string { return filepath.Join(b.Dir, name) }

// FindBinaries returns the newest usable server: in dir when given, else those
// that PATH leads to, else those in the usual places. major > 0 asks for
// exactly that version. The error wraps ErrNoServer and says what to install.
func FindBinaries(ctx context.Context, dir string, major int) (Binaries, error) {
	if dir != "" {
		b, err := inspect(ctx, dir)
		if err == nil && major > 0 && b.Major != major {
			err = fmt.Errorf("it is version %d, the cluster needs %d", b.Major, major)
		}
		if err != nil {
			return Binaries{}, fmt.Errorf("%w in %s: %w", ErrNoServer, dir, err)
		}
		return b, nil
	}
	var seen []string
	for _, group := range [][]string{pathDirs(), usualDirs()} {
		var found []Binaries
		for _, d := range group {
			b, err := inspect(ctx, d)
			if err != nil {
				continue
			}
			seen = append(seen, strconv.Itoa(b.Major))
			if b.Major >= minMajor && (major == 0 || b.Major == major) {
				found = append(found, b)
			}
		}
		if len(found) > 0 {
			return slices.MaxFunc(found, func(a, b Binaries) int { return a.Major - b.Major }), nil
		}
	}
	return Binaries{}, notFound(major, seen)
}

func notFound(major int, seen []string) error {
	want, pkg := fmt.Sprintf("version %d or later", minMajor), "postgresql"
	if major > 0 {
		want, pkg = fmt.Sprintf("version %d, which made the cluster", major), fmt.Sprintf("postgresql-%d", major)
	}
	have := ""
	if len(seen) > 0 {
		slices.Sort(seen)
		have = ", have " + strings.Join(slices.Compact(seen), ", ")
	}
	return fmt.Errorf("%w (want %s%s): %s, or set WEIR_DATABASE_URL to a server of yours", ErrNoServer, want, have, installHint(pkg))
}

func installHint(pkg string) string {
	if runtime.GOOS == "darwin" {
		return "run 'brew install " + strings.Replace(pkg, "postgresql-", "postgresql@", 1) + "'"
	}
	return "run 'apt-get install " + pkg + "' (dnf: postgresql-server)"
}

// pathDirs returns the folders behind what PATH offers. A wrapper script's
// folder falls out later, because it does not hold the whole server.
func pathDirs() []string {
	var out []string
	for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
		p, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(p); err == nil {
			p = real
		}
		if d := filepath.Dir(p); !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

func usualDirs() []string {
	var out []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/lib/postgresql*/bin", "/usr/local/pgsql/bin",
		"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin", "/opt/local/lib/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin", "/usr/libexec/postgresql*",
	} {
		m, _ := filepath.Glob(pattern) // the patterns are well-formed
		out = append(out, m...)
	}
	return out
}

var versionRE = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// inspect checks that dir holds the server's own binaries, all of one version.
func inspect(ctx context.Context, dir string) (Binaries, error) {
	b := Binaries{Dir: dir}
	for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
		v, err := majorOf(ctx, b.path(name))
		if err != nil {
			return Binaries{}, err
		}
		if b.Major != 0 && b.Major != v {
			return Binaries{}, fmt.Errorf("%s is version %d, postgres is %d", name, v, b.Major)
		}
		b.Major = v
	}
	return b, nil
}

func majorOf(ctx context.Context, path string) (int, error) {
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if st.IsDir() || st.Mode().Perm()&0o111 == 0 {
		return 0, fmt.Errorf("%s is not executable", path)
	}
	out, err := runAs(ctx, nil, "", path, "--version")
	if err != nil {
		return 0, err
	}
	m := versionRE.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("%s is not PostgreSQL's", path)
	}
	return strconv.Atoi(m[1])
}

const runLimit = 2 * time.Minute

// runAs runs a program to its end, as the user of cred when set, and returns
// its output. The error holds the last lines of stderr.
func runAs(ctx context.Context, cred *syscall.Credential, dir, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	if dir == "" {
		cmd.Dir = "/" // the caller's own folder may be closed to cred
	}
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	var stderr tail
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w%s", filepath.Base(path), err, stderr.reason())
	}
	return string(out), nil
}
