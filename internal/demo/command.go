package demo

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/pki"
)

const usage = "--cloud-url https://HOST:PORT --ca FILE --admin-token-file F --key-file F [--join-file F] [--worker-join-file F]"

// Command is "weir demo".
func Command() cli.Command {
	return cli.Command{Name: "demo", Short: "give a fresh cloud a demo tenant, API key and join tokens", Usage: usage, Run: run}
}

func run(ctx context.Context, env cli.Env, args []string) error {
	var o Options
	fs := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	fs.StringVar(&o.CloudURL, "cloud-url", "", "the cloud's URL")
	ca := fs.String("ca", "", "certificate of the cloud's authority (ca.pem)")
	tokenFile := fs.String("admin-token-file", "", "file with a platform admin token")
	fs.StringVar(&o.KeyFile, "key-file", "", "where the API key goes; kept when it exists")
	fs.StringVar(&o.JoinFile, "join-file", "", "where the device's join token goes; kept when it exists")
	fs.StringVar(&o.WorkerFile, "worker-join-file", "", "where the workers' join token goes; kept when it exists")
	wait := fs.Duration("wait", time.Minute, "how long to wait for a cloud that is still starting")
	if err := cli.ParseFlags(env, fs, usage, args); err != nil {
		return err
	}
	if o.CloudURL == "" || *tokenFile == "" || o.KeyFile == "" || fs.NArg() > 0 {
		return cli.Usagef("want %s", usage)
	}
	ctx, cancel := context.WithTimeout(ctx, *wait)
	defer cancel()
	return retry(ctx, func() error {
		token, err := os.ReadFile(*tokenFile)
		if err != nil {
			return fmt.Errorf("--admin-token-file: %w", err)
		}
		o.AdminToken = strings.TrimSpace(string(token))
		if o.HTTP, err = httpClient(*ca); err != nil {
			return err
		}
		if _, err = Ensure(ctx, o); err == nil {
			fmt.Fprintf(env.Stdout, "tenant %s is there; its key is in %s\n", Tenant, o.KeyFile)
		}
		return err
	})
}

func httpClient(caFile string) (*http.Client, error) {
	var conf *tls.Config
	if caFile != "" {
		pool, err := pki.LoadPool(caFile)
		if err != nil {
			return nil, err
		}
		conf = pki.ClientConfig(nil, pool, pki.RoleGateway)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true}}, nil
}

// retry calls f each second until it succeeds or ctx ends.
func retry(ctx context.Context, f func() error) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		err := f()
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}
