package clients

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// programs is a server whose kinds end as their names say.
const programs = `
[pool.main]
workers = 2
[kind.missing]
pool = "main"
exec = ["/bin/sh", "-c", "cat >/dev/null; echo no such order >&2; exit 3"]
exit_codes = { "3" = "NOT_FOUND" }
[kind.away]
pool = "main"
exec = ["/bin/sh", "-c", "exit 75"]
[kind.unmapped]
pool = "main"
exec = ["/bin/sh", "-c", "exit 9"]
[kind.crashing]
pool = "main"
exec = ["/bin/sh", "-c", "kill -SEGV $$"]
[kind.verbose]
pool = "main"
exec = ["/bin/sh", "-c", "head -c 100000 /dev/zero"]
max_output = "64KiB"
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
	labels := map[string]string{}
	for i := range 17 {
		labels[fmt.Sprintf("label-%d", i)] = ""
	}
	for _, request := range []*pb.SubmitRequest{
		{},
		{Job: &pb.Job{Kind: "echo", Tenant: strings.Repeat("t", 129), OrderingKey: "a\nb", Labels: labels}},
		{Job: &pb.Job{Kind: "echo", RunTimeout: durationpb.New(-1), Criticality: 77, WhenFull: -1}},
		{Job: &pb.Job{Payload: []byte("of no kind")}},
	} {
		_, err := client.Submit(within(t), request)
		info := check(t, err, codes.InvalidArgument, "INVALID_FIELD")
		found := violations(t, err)
		var expected []string
		switch {
		case request.Job == nil:
			expected = []string{"job"}
		case request.Job.Kind == "":
			expected = []string{"job.kind"}
		case request.Job.Tenant != "":
			expected = []string{"job.tenant", "job.ordering_key", "job.labels"}
		default:
			expected = []string{"job.run_timeout", "job.criticality", "job.when_full"}
		}
		for _, field := range expected {
			if found[field] == "" {
				t.Errorf("%s is not in %v", field, found)
			}
		}
		if len(found) != len(expected) || info.Metadata["execution"] != "NOT_STARTED" {
			t.Errorf("expected %v, found %v (%v)", expected, found, info)
		}
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
