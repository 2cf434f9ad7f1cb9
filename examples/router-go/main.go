// A router's half of admission: router-go [-request-id ID] [-deadline S] PROMPT_TOKENS MAX_NEW_TOKENS TARGET…
//
//	place the request on a node ─► print where, as one line of JSON ─► hold it until stdin ends ─► Release
//	    └─ no node takes it: print why, exit code 4
//
// The same rules as examples/router.py and examples/router-rust; docs/routers.md explains them.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

func main() {
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		code = 2
	}
	os.Exit(code)
}

func run() (int, error) {
	requestID := flag.String("request-id", rand.Text(), "your name for the request")
	deadline := flag.Float64("deadline", 10, "seconds until no node means no")
	flag.Parse()
	if flag.NArg() < 3 {
		return 2, errors.New("give PROMPT_TOKENS MAX_NEW_TOKENS TARGET…")
	}
	promptTokens, err := strconv.ParseUint(flag.Arg(0), 10, 64)
	if err != nil {
		return 2, err
	}
	maxNewTokens, err := strconv.ParseUint(flag.Arg(1), 10, 64)
	if err != nil {
		return 2, err
	}
	router, err := NewRouter(flag.Args()[2:])
	if err != nil {
		return 2, err
	}
	defer router.Close()

	ctx := context.Background()
	length := time.Duration(*deadline * float64(time.Second))
	placed, tried, reason := router.Place(ctx, *requestID, promptTokens, maxNewTokens, length)
	if placed == nil {
		return 4, say(map[string]any{"refused": reason, "tried": tried})
	}
	defer settle(ctx, placed.node, *requestID)
	if err := say(map[string]any{"node": placed.node.Target, "lease_id": placed.lease.Id, "tried": tried}); err != nil {
		return 1, err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	for { // here the request runs; the lease of a router lives by Renew
		select {
		case <-ended:
			return 0, nil
		case <-time.After(leaseTTL / 3):
			// An answer that is lost does not matter: the next one comes well before the lease's end.
			_ = placed.node.Renew(ctx, placed.lease)
		}
	}
}

func say(line any) error { return json.NewEncoder(os.Stdout).Encode(line) }
