package clients

import (
	"fmt"
	"io"
	"testing"

	pb "waterwheel.dev/go/waterwheel/v1"
)

// tiny is a server with room for two jobs at a time.
const tiny = `
kind.echo = { pool = "tiny", builtin = "echo" }
kind.sleep = { pool = "tiny", builtin = "sleep" }
[server]
max_payload = "1MiB"
[pool.tiny]
workers = 1
queue = { jobs = 1 }
when_full = "reject"
`

// submitMany sends all requests while it reads, and returns the ends by tag.
func submitMany(t *testing.T, client pb.WorkerPoolServiceClient, requests []*pb.SubmitManyRequest) map[string]*pb.SubmitManyResponse {
	t.Helper()
	call, err := client.SubmitMany(within(t))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for _, request := range requests {
			if call.Send(request) != nil {
				return // Recv tells why.
			}
		}
		call.CloseSend()
	}()
	ends := map[string]*pb.SubmitManyResponse{}
	for {
		response, err := call.Recv()
		if err == io.EOF {
			return ends
		}
		if err != nil {
			t.Fatal(err)
		}
		if ends[response.Tag] != nil {
			t.Fatalf("tag %q was answered twice", response.Tag)
		}
		ends[response.Tag] = response
	}
}

func TestSubmitManyAnswersEachOf500JobsOnceAndRefusesNone(t *testing.T) {
	client := start(t, tiny).client()
	var requests []*pb.SubmitManyRequest
	for i := range 500 {
		tag := fmt.Sprintf("job-%d", i)
		requests = append(requests, &pb.SubmitManyRequest{Tag: tag, Job: &pb.Job{Kind: "echo", Payload: []byte("of " + tag)}})
	}
	// A few that take their time, so that the pool is full.
	for i := 0; i < 500; i += 100 {
		requests[i].Job = &pb.Job{Kind: "sleep", Payload: []byte("50")}
	}
	ends := submitMany(t, client, requests)
	if len(ends) != len(requests) {
		t.Errorf("%d of %d jobs were answered", len(ends), len(requests))
	}
	for i, request := range requests {
		expected := "of " + request.Tag
		if i%100 == 0 {
			expected = "slept 50 ms"
		}
		if end := ends[request.Tag]; string(end.GetResult().GetOutput()) != expected {
			t.Errorf("%s: %v", request.Tag, end)
		}
	}
	if stats := pool(t, client, "tiny"); stats.Jobs.Completed != 500 || len(stats.Jobs.Rejected) != 0 {
		t.Errorf("%v", stats.Jobs)
	}
}
