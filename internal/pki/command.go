package pki

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
)

// PKICommand is "weir pki".
func PKICommand() cli.Command {
	return cli.Command{Name: "pki", Short: "make the certificate authority, issue certificates", Sub: []cli.Command{
		{Name: "init", Short: "make the authority of a secrets directory", Usage: "--secrets-dir DIR", Run: runInit},
		{Name: "issue", Short: "issue a certificate to a gateway or worker", Usage: "--secrets-dir DIR --role worker --name NAME --out-dir DIR", Run: runIssue},
	}}
}

func runInit(_ context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("pki init", pflag.ContinueOnError)
	dir := fs.String("secrets-dir", "", "folder of ca.pem and ca-key.pem")
	if err := cli.ParseFlags(env, fs, "--secrets-dir DIR", args); err != nil {
		return err
	}
	if *dir == "" || fs.NArg() > 0 {
		return cli.Usagef("want --secrets-dir DIR and nothing else")
	}
	a, err := OpenAuthority(*dir)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Stdout, "%s\npin %s\n", filepath.Join(*dir, CAFile), a.Pin())
	return err
}

func runIssue(_ context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("pki issue", pflag.ContinueOnError)
	dir := fs.String("secrets-dir", "", "folder of ca.pem and ca-key.pem")
	out := fs.String("out-dir", "", "folder for cert.pem, key.pem and ca.pem")
	role := fs.String("role", "", "worker or gateway (devices join with a token)")
	name := fs.String("name", "", "name of the holder")
	hosts := fs.StringSlice("san", LoopbackHosts(), "host names and IP addresses the holder serves under")
	days := fs.Int("days", int(DefaultLife/(24*time.Hour)), "days until it expires")
	if err := cli.ParseFlags(env, fs, "--secrets-dir DIR --role worker --name NAME --out-dir DIR", args); err != nil {
		return err
	}
	switch {
	case *dir == "" || *out == "" || *name == "" || fs.NArg() > 0:
		return cli.Usagef("want --secrets-dir, --role, --name and --out-dir")
	case Role(*role) != RoleWorker && Role(*role) != RoleGateway:
		return cli.Usagef("--role: want worker or gateway, not %q", *role)
	case *days < 1 || *days > 3650:
		return cli.Usagef("--days: want 1 to 3650")
	}
	a, err := OpenAuthority(*dir)
	if err != nil {
		return err
	}
	spec := Spec{Peer: Peer{Role: Role(*role), Name: *name}, Hosts: *hosts, Life: time.Duration(*days) * 24 * time.Hour}
	if err := a.IssueTo(*out, spec); err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Stdout, "%s\n%s\n%s\n", filepath.Join(*out, CertFile), filepath.Join(*out, KeyFile), filepath.Join(*out, CAFile))
	return err
}

// Files that IssueTo writes beside CAFile.
const (
	CertFile = "cert.pem"
	KeyFile  = "key.pem"
)

// IssueTo issues a certificate into a folder: CertFile, KeyFile and CAFile,
// each with mode 0600. It makes the folder (0700) when missing.
func (a *Authority) IssueTo(dir string, s Spec) error {
	chain, key, err := a.IssuePEM(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("issue certificate: %w", err)
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{KeyFile, key}, {CertFile, chain}, {CAFile, a.CertPEM()}} {
		if err := WriteSecret(filepath.Join(dir, f.name), f.data); err != nil {
			return err
		}
	}
	return nil
}
