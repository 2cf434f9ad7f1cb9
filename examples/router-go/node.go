package main

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	hisparse "example.com/router-go/hisparse/v1"
)

const (
	// attempt is the longest that one node may take to answer.
	attempt = time.Second
	// leaseTTL is the life of a lease without Commit or Renew: also the longest time that a lost attempt can hold anything.
	leaseTTL = 10 * time.Second
)

// Refused is a decision against a call: nothing is held.
type Refused struct {
	// Reason is POOL_BUSY, NEVER_FITS, …; the name of the code where there is none.
	Reason string
	// Retry says when to try again on this node; 0 where that cannot help.
	Retry time.Duration
}

func (r *Refused) Error() string { return r.Reason }

// Unknown is a call that may have been done: NO_ANSWER or UNREACHABLE.
type Unknown string

func (u Unknown) Error() string { return string(u) }

// Node is one node. It connects with the first call, and again where it was cut.
type Node struct {
	Target     string
	connection *grpc.ClientConn
	capacity   hisparse.CapacityServiceClient
	admission  hisparse.AdmissionServiceClient
}

// NewNode takes unix:PATH or HOST:PORT. gRPC for Go names the authority of a Unix socket "localhost" by itself.
func NewNode(target string) (*Node, error) {
	backoff := grpc.ConnectParams{MinConnectTimeout: attempt}
	backoff.Backoff.BaseDelay, backoff.Backoff.Multiplier, backoff.Backoff.MaxDelay = 100*time.Millisecond, 1.6, 2*time.Second
	connection, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(backoff))
	if err != nil {
		return nil, err
	}
	return &Node{
		Target:     target,
		connection: connection,
		capacity:   hisparse.NewCapacityServiceClient(connection),
		admission:  hisparse.NewAdmissionServiceClient(connection),
	}, nil
}

// Room says how many further requests of a length would be granted now.
func (n *Node) Room(ctx context.Context, tokens uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	seen, err := n.capacity.GetCapacity(ctx, &hisparse.GetCapacityRequest{Lengths: []uint64{tokens}})
	if err != nil {
		return 0, read(err)
	}
	return seen.Fits[0].Count, nil
}

// Admit reserves.
func (n *Node) Admit(ctx context.Context, requestID string, promptTokens, maxNewTokens uint64) (*hisparse.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	granted, err := n.admission.Admit(ctx, &hisparse.AdmitRequest{
		RequestId:    requestID,
		PromptTokens: promptTokens,
		MaxNewTokens: maxNewTokens,
		Ttl:          durationpb.New(leaseTTL),
	})
	if err != nil {
		return nil, read(err)
	}
	return granted.Lease, nil
}

// Commit turns a reservation into use.
func (n *Node) Commit(ctx context.Context, lease *hisparse.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	_, err := n.admission.Commit(ctx, &hisparse.CommitRequest{
		LeaseId: lease.Id, Epoch: lease.Epoch, Tenant: lease.Tenant, Ttl: durationpb.New(leaseTTL),
	})
	return read(err)
}

// Renew puts off the end.
func (n *Node) Renew(ctx context.Context, lease *hisparse.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	_, err := n.admission.Renew(ctx, &hisparse.RenewRequest{
		LeaseId: lease.Id, Epoch: lease.Epoch, Tenant: lease.Tenant, Ttl: durationpb.New(leaseTTL),
	})
	return read(err)
}

// Release gives back whatever a request holds here. Of nothing it succeeds too.
func (n *Node) Release(ctx context.Context, requestID string) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	_, err := n.admission.Release(ctx, &hisparse.ReleaseRequest{RequestId: requestID})
	return read(err)
}

// read says what a failed call means.
//
//	a status with ErrorInfo   Refused: decided, nothing is held (RetryInfo says when to come back)
//	INVALID_ARGUMENT, …       Refused: nothing is held
//	anything else             Unknown: the call may have been done
func read(err error) error {
	if err == nil {
		return nil
	}
	answer := status.Convert(err)
	refused := Refused{}
	for _, detail := range answer.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.Domain == "hisparse.v1" {
				refused.Reason = detail.Reason
			}
		case *errdetails.RetryInfo:
			refused.Retry = detail.RetryDelay.AsDuration()
		}
	}
	if refused.Reason != "" {
		return &refused
	}
	switch code := answer.Code(); code {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return &Refused{Reason: code.String()}
	case codes.Unavailable:
		return Unknown("UNREACHABLE")
	default:
		return Unknown("NO_ANSWER")
	}
}

// asRefused gives the refusal, where the error is one.
func asRefused(err error) (*Refused, bool) {
	var refused *Refused
	return refused, errors.As(err, &refused)
}
