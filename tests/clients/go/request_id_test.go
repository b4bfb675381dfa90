package clients

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	pb "waterwheel.dev/go/waterwheel/v1"
)

var uuid7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// named is a context whose call carries a request id.
func named(ctx context.Context, id string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-request-id", id)
}

// requestID is the one id that the metadata holds.
func requestID(t *testing.T, from metadata.MD) string {
	t.Helper()
	ids := from.Get("x-request-id")
	if len(ids) != 1 {
		t.Fatalf("request ids in %v: %v", from, ids)
	}
	return ids[0]
}

func TestOwnRequestIdComesBackInTheHeadersOfAResult(t *testing.T) {
	client := start(t, everyday).client()
	for _, id := range []string{"order-4711", strings.Repeat("x", 128)} {
		var headers metadata.MD
		if _, err := client.Submit(named(within(t), id), submission("echo", ""), grpc.Header(&headers)); err != nil {
			t.Fatal(err)
		}
		if got := requestID(t, headers); got != id {
			t.Errorf("sent %q, got %q", id, got)
		}
	}
	stream, err := client.Stream(named(within(t), "of-a-stream"), &pb.StreamRequest{Job: &pb.Job{Kind: "echo"}})
	if err != nil {
		t.Fatal(err)
	}
	if headers, err := stream.Header(); err != nil || requestID(t, headers) != "of-a-stream" {
		t.Errorf("%v (%v)", headers, err)
	}
}

func TestOwnRequestIdComesBackInTheTrailersOfAnError(t *testing.T) {
	client := start(t, everyday).client()
	for kind, code := range map[string]codes.Code{"nosuch": codes.InvalidArgument, "sleep": codes.InvalidArgument} {
		var trailers metadata.MD
		_, err := client.Submit(named(within(t), "lost-"+kind), submission(kind, "gibberish"), grpc.Trailer(&trailers))
		if status.Code(err) != code {
			t.Fatalf("%s: %v", kind, err)
		}
		if got := requestID(t, trailers); got != "lost-"+kind {
			t.Errorf("%s: %q", kind, got)
		}
	}
}

func TestOwnRequestIdComesBackInTheTrailersOfAStreamThatFails(t *testing.T) {
	client := start(t, everyday).client()
	stream, err := client.Stream(named(within(t), "half-way"), &pb.StreamRequest{Job: &pb.Job{Kind: "sleep", Payload: []byte("gibberish")}})
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	check(t, err, codes.InvalidArgument, "HANDLER_FAILED")
	if got := requestID(t, stream.Trailer()); got != "half-way" {
		t.Errorf("got %q", got)
	}
}
