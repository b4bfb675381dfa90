package clients

import (
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// programs is a server whose kind fails as unavailable.
const programs = `
pool.main.workers = 2
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
