package main

import (
	"context"
	"math/rand/v2"
	"sort"
	"time"

	hisparse "example.com/router-go/hisparse/v1"
)

const (
	neverFits = "NEVER_FITS"
	// settleRest is the rest between two tries to settle a node.
	settleRest = 100 * time.Millisecond
	// untoldRest is the rest where no refusal said how long.
	untoldRest = time.Second
)

// Tried is what became of one attempt.
type Tried struct {
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

// Placed is a request that has its memory.
type Placed struct {
	node  *Node
	lease *hisparse.Lease
}

// Router places requests on nodes, one lease per request.
//
//	request ─► nodes that answer, most room first ─► Admit on one
//	             ▲      refused ─► the next one
//	             │      unknown ─► settle that node first ─► the next one
//	             └───── all refused: rest as long as the soonest RetryInfo says, until the deadline
type Router struct{ nodes []*Node }

// NewRouter makes one of the nodes at these targets.
func NewRouter(targets []string) (*Router, error) {
	router := &Router{}
	for _, target := range targets {
		node, err := NewNode(target)
		if err != nil {
			return nil, err
		}
		router.nodes = append(router.nodes, node)
	}
	return router, nil
}

// Close closes the connections.
func (r *Router) Close() {
	for _, node := range r.nodes {
		_ = node.connection.Close()
	}
}

// Place reserves and commits on one node; where none takes the request it gives the last reason instead.
func (r *Router) Place(
	ctx context.Context, requestID string, promptTokens, maxNewTokens uint64, length time.Duration,
) (*Placed, []Tried, string) {
	end := time.Now().Add(length)
	tried := []Tried{}
	for {
		begins, rest := len(tried), time.Duration(0)
		nodes, silent := r.ranked(ctx, promptTokens+maxNewTokens)
		tried = append(tried, silent...)
		for _, node := range nodes {
			lease, err := node.Admit(ctx, requestID, promptTokens, maxNewTokens)
			if err == nil {
				err = node.Commit(ctx, lease)
			}
			if err == nil {
				return &Placed{node, lease}, tried, ""
			}
			if refused, ok := asRefused(err); ok {
				if refused.Retry > 0 && (rest == 0 || refused.Retry < rest) {
					rest = refused.Retry
				}
			} else {
				settle(ctx, node, requestID)
			}
			tried = append(tried, Tried{node.Target, err.Error()})
		}
		never := true
		for _, each := range tried[begins:] {
			never = never && each.Reason == neverFits
		}
		if rest == 0 {
			rest = untoldRest
		}
		// Jitter, so that routers that were refused together do not come back together.
		rest = time.Duration(float64(rest) * (0.8 + 0.4*rand.Float64()))
		if never || time.Now().Add(rest).After(end) {
			return nil, tried, tried[len(tried)-1].Reason
		}
		time.Sleep(rest)
	}
}

// ranked gives the nodes that answer, by how often the request would fit, most first, and those that do not. A guess:
// only Admit decides.
func (r *Router) ranked(ctx context.Context, tokens uint64) ([]*Node, []Tried) {
	var nodes []*Node
	var silent []Tried
	counts := map[*Node]uint64{}
	for _, node := range r.nodes {
		count, err := node.Room(ctx, tokens)
		if err != nil { // not asked to admit anything: nothing to settle there
			silent = append(silent, Tried{node.Target, err.Error()})
			continue
		}
		counts[node] = count
		nodes = append(nodes, node)
	}
	sort.SliceStable(nodes, func(a, b int) bool { return counts[nodes[a]] > counts[nodes[b]] })
	return nodes, silent
}

// settle makes sure that a node holds nothing for a request: Release until it has answered twice, as a call may reach it
// after its release did; or until whatever it holds is past its ttl.
func settle(ctx context.Context, node *Node, requestID string) {
	over := time.Now().Add(leaseTTL)
	for answered := 0; answered < 2 && time.Now().Before(over); time.Sleep(settleRest) {
		if node.Release(ctx, requestID) == nil {
			answered++
		}
	}
}
