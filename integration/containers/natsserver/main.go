// Command natsserver is nats-server as the container tests need it: the same options on the command line, and nothing
// that the module of these tests does not require anyway.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "natsserver:", err)
		os.Exit(1)
	}
}

// run serves until a signal ends it, which the server handles by itself.
func run(args []string) error {
	flags := flag.NewFlagSet("natsserver", flag.ContinueOnError)
	none := func() {}
	options, err := server.ConfigureOptions(flags, args, none, flags.Usage, none)
	if err != nil {
		return fmt.Errorf("read options: %w", err)
	}
	s, err := server.NewServer(options)
	if err != nil {
		return fmt.Errorf("make the server: %w", err)
	}
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
	return nil
}
