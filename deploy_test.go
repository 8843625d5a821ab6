package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/internal/cli"
)

// parses feeds a command line to the real flag parser: --help at the end is
// reached only when every flag before it is known and well formed.
func parses(t *testing.T, args []string) {
	t.Helper()
	var out bytes.Buffer
	env := cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}
	if len(args) > 0 && args[0] != "help" {
		args = append(args[:len(args):len(args)], "--help")
	}
	if code := cli.Main(context.Background(), env, commands(), args); code != cli.ExitOK {
		t.Errorf("weir %s: exit %d: %s", strings.Join(args, " "), code, out.String())
	}
}

func TestComposeCommandLines(t *testing.T) {
	data, err := os.ReadFile("docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Build   any      `yaml:"build"`
			Command []string `yaml:"command"`
		} `yaml:"services"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	n := 0
	for name, s := range file.Services {
		if s.Build == nil {
			continue // not our image
		}
		if len(s.Command) == 0 {
			t.Errorf("service %s has no command", name)
		}
		parses(t, s.Command)
		n++
	}
	if n < 5 {
		t.Errorf("found %d services of Weir's image, want cloud, two workers, edge and their set-up", n)
	}
}

func TestDockerfileCommandLines(t *testing.T) {
	data, err := os.ReadFile("deploy/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	cmd := regexp.MustCompile(`(?m)^CMD (\[.*\])$`).FindSubmatch(data)
	var args []string
	if cmd == nil || json.Unmarshal(cmd[1], &args) != nil {
		t.Fatal("no CMD in the Dockerfile")
	}
	parses(t, args)
	run := regexp.MustCompile(`&& /out/weir ([^&\n]+)`).FindAllSubmatch(data, -1)
	if len(run) == 0 {
		t.Fatal("the image does not install the inference libraries")
	}
	for _, m := range run {
		parses(t, strings.Fields(string(m[1])))
	}
}

func TestShippedConfigurations(t *testing.T) {
	files, err := filepath.Glob("deploy/compose/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("found %v, %v", files, err)
	}
	for _, f := range files {
		var out bytes.Buffer
		env := cli.Env{Stdout: &out, Stderr: &out, Getenv: func(k string) string {
			if k == "WEIR_CLOUD_DATABASE_URL" {
				return "postgres://weir@postgres:5432/weir"
			}
			return ""
		}}
		if code := cli.Main(context.Background(), env, commands(), []string{"config", "check", f}); code != cli.ExitOK {
			t.Errorf("%s: %s", f, out.String())
		}
	}
}
