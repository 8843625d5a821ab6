package experts

import (
	"github.com/weirhq/weir/internal/cli"
)

func watchCommand() cli.Command { return cli.Command{Name: "watch"} }
