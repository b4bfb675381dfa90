package clients

import (
	"bytes"
	"testing"
	"time"

	pb "waterwheel.dev/go/waterwheel/v1"
)

// everyday is a server as many will run it.
const everyday = `
pool.cpu.workers = 2
kind.sha256 = { pool = "cpu", builtin = "sha256" }
kind.gzip = { pool = "cpu", builtin = "gzip" }
kind.sleep = { pool = "io", builtin = "sleep" }
kind.echo = { pool = "io", builtin = "echo" }
[pool.io]
workers = 8
when_full = "wait"
`

// bytesOfAllValues is a payload that is no text.
func bytesOfAllValues(length int) []byte {
	payload := make([]byte, length)
	for i := range payload {
		payload[i] = byte(i)
	}
	return payload
}

func TestSubmitReturnsTheBytesTheirTypeAndWhereTheBudgetWent(t *testing.T) {
	client := start(t, everyday).client()
	payload := bytesOfAllValues(100_000)
	const budget = 10 * time.Second
	response, err := client.Submit(deadline(t, budget), &pb.SubmitRequest{Job: &pb.Job{
		Kind: "echo", Payload: payload, ContentType: "image/png",
	}})
	if err != nil {
		t.Fatal(err)
	}
	result := response.Result
	if !bytes.Equal(result.Output, payload) || result.ContentType != "image/png" || result.JobId == "" {
		t.Errorf("got %d bytes of %q from job %q", len(result.Output), result.ContentType, result.JobId)
	}
	w := result.Waterfall
	given, left := w.BudgetSeconds, w.LeftSeconds
	if given > budget.Seconds() || given < budget.Seconds()/2 || left <= 0 {
		t.Errorf("of %v arrived %v s, and %v s are left", budget, given, left)
	}
	if spent := w.QueueSeconds + w.RunSeconds; spent <= 0 || spent+left > given+1e-6 {
		t.Errorf("%v s spent and %v s left of %v s", spent, left, given)
	}
}
