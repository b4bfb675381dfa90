package clients

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	pb "waterwheel.dev/go/waterwheel/v1"
)

// everyday is a server as many will run it.
const everyday = `
[pool.cpu]
workers = 2
[pool.io]
workers = 8
when_full = "wait"
[kind.sha256]
pool = "cpu"
builtin = "sha256"
[kind.gzip]
pool = "cpu"
builtin = "gzip"
[kind.sleep]
pool = "io"
builtin = "sleep"
[kind.echo]
pool = "io"
builtin = "echo"
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
	given, left := w.Budget.AsDuration(), w.Left.AsDuration()
	if given > budget || given < budget/2 || left <= 0 {
		t.Errorf("of %v arrived %v, and %v are left", budget, given, left)
	}
	if spent := w.Queue.AsDuration() + w.Run.AsDuration(); spent <= 0 || spent+left > given {
		t.Errorf("%v spent and %v left of %v", spent, left, given)
	}
}

func TestSubmitSha256EqualsOwnDigest(t *testing.T) {
	client := start(t, everyday).client()
	payload := bytesOfAllValues(1_000_000)
	response, err := client.Submit(within(t), submission("sha256", string(payload)))
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(payload)
	if own := hex.EncodeToString(digest[:]); string(response.Result.Output) != own {
		t.Errorf("own digest %s, the server's %s", own, response.Result.Output)
	}
}

func TestJobIdsDiffer(t *testing.T) {
	client := start(t, everyday).client()
	seen := map[string]bool{}
	for range 20 {
		response, err := client.Submit(within(t), submission("echo", ""))
		if err != nil {
			t.Fatal(err)
		}
		seen[response.Result.JobId] = true
	}
	if len(seen) != 20 {
		t.Errorf("20 jobs, %d ids", len(seen))
	}
}
