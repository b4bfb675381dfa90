package clients

import (
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// programs is a server whose kind fails as unavailable.
const programs = `
[pool.main]
workers = 2
[kind.away]
pool = "main"
exec = ["/bin/sh", "-c", "exit 75"]
`

// violations returns the fields and descriptions of a BadRequest.
func violations(t *testing.T, err error) map[string]string {
	t.Helper()
	bad, ok := detail[*errdetails.BadRequest](err)
	if !ok {
		t.Fatalf("no BadRequest in %v", err)
	}
	found := map[string]string{}
	for _, violation := range bad.FieldViolations {
		found[violation.Field] = violation.Description
	}
	return found
}

func TestEveryInvalidFieldIsNamed(t *testing.T) {
	client := start(t, everyday).client()
	_, err := client.Submit(within(t), &pb.SubmitRequest{Job: &pb.Job{Kind: "echo", Tenant: strings.Repeat("t", 129), OrderingKey: "a\nb"}})
	info := check(t, err, codes.InvalidArgument, "INVALID_FIELD")
	found := violations(t, err)
	if len(found) != 2 || found["job.tenant"] == "" || found["job.ordering_key"] == "" || info.Metadata["execution"] != "NOT_STARTED" {
		t.Errorf("%v (%v)", found, info)
	}
}

func TestPayloadTooLargeIsNotToBeRetried(t *testing.T) {
	client := start(t, tiny).client()
	// Just over the limit the job is refused; far over it the message is not even read.
	for _, size := range []int{1<<20 + 1, 3 << 20} {
		var trailers metadata.MD
		_, err := client.Submit(within(t), &pb.SubmitRequest{Job: &pb.Job{Kind: "echo", Payload: make([]byte, size)}}, grpc.Trailer(&trailers))
		info := check(t, err, codes.ResourceExhausted, "PAYLOAD_TOO_LARGE")
		if pushback(t, trailers) != -1 || info.Metadata["execution"] != "NOT_STARTED" {
			t.Errorf("%v %v", info, trailers)
		}
	}
	if _, err := client.Submit(within(t), &pb.SubmitRequest{Job: &pb.Job{Kind: "echo", Payload: make([]byte, 1<<20)}}); err != nil {
		t.Errorf("a payload at its limit: %v", err)
	}
}

func TestQueueFullSaysWhenToComeBack(t *testing.T) {
	client := start(t, tiny).client()
	running := background(within(t), client, "sleep", "1500")
	eventually(t, "a job runs", func() bool { return pool(t, client, "tiny").InFlight == 1 })
	queued := background(within(t), client, "echo", "")
	eventually(t, "a job is queued", func() bool { return pool(t, client, "tiny").Queue.Jobs == 1 })
	var trailers metadata.MD
	_, err := client.Submit(within(t), submission("echo", ""), grpc.Trailer(&trailers))
	info := check(t, err, codes.ResourceExhausted, "QUEUE_FULL")
	if info.Metadata["execution"] != "NOT_STARTED" || info.Metadata["pool"] != "tiny" {
		t.Errorf("%v", info)
	}
	retry, ok := detail[*errdetails.RetryInfo](err)
	millis := pushback(t, trailers)
	if !ok || millis <= 0 || retry.RetryDelay.AsDuration().Milliseconds() != int64(millis) {
		t.Errorf("%v and %d ms", retry, millis)
	}
	if count := rejected(pool(t, client, "tiny"), "QUEUE_FULL"); count != 1 {
		t.Errorf("%d refusals were counted", count)
	}
	for _, ended := range []<-chan error{running, queued} {
		if err := await(t, ended); err != nil {
			t.Error(err)
		}
	}
}
