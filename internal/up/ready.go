package up

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/pki"
)

// publish writes the ready files and prints the ready line.
func (s *supervisor) publish(r client.Ready) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("ready file: %w", err)
	}
	files := []string{s.path(ReadyName)}
	if s.readyFile != "" {
		files = append(files, s.readyFile)
	}
	for _, f := range files {
		if err := pki.WriteSecret(f, append(data, '\n')); err != nil {
			return fmt.Errorf("ready file: %w", err)
		}
	}
	s.say("\nweir is ready after %.1f s: edge %s, cloud %s, HTTP/3 %s", time.Since(s.began).Seconds(), r.EdgeURL, r.CloudURL, r.CloudH3Addr)
	s.say("\nTry:\n  curl %s/v1/chat/completions -H 'Authorization: Bearer %s' \\\n    -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"model\":\"auto\",\"messages\":[{\"role\":\"user\",\"content\":\"turn on the kitchen light\"}]}'", r.EdgeURL, r.AppKey)
	s.say("  %s \"what is 347 plus 58\"\n\nCtrl-C stops everything.", s.chatCommand())
	return nil
}

// chatCommand is the call of "weir chat" that finds this system: with its
// ready file where that is not the one looked for anyway.
func (s *supervisor) chatCommand() string {
	command := os.Args[0] + " chat"
	if dir, err := DefaultData(s.env.Getenv); err != nil || dir != s.data {
		command += " --ready-file " + s.path(ReadyName)
	}
	return command
}
