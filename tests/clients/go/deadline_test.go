package clients

import (
	"strconv"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// impatient is a server with one worker. It answers 50 ms early: on a busy machine the default of 10 ms would measure
// the machine.
const impatient = `
pool.one.workers = 1
kind.sleep = { pool = "one", builtin = "sleep" }
[deadline]
reply_margin = "50ms"
`

func TestDeadlineExceededArrivesWithItsDetailsBeforeTheOwnTimer(t *testing.T) {
	client := start(t, impatient).client()
	pool(t, client, "one") // connects
	const calls, budget = 10, 600 * time.Millisecond
	told := 0
	for range calls {
		var trailers metadata.MD
		_, err := client.Submit(deadline(t, budget), submission("sleep", "60000"), grpc.Trailer(&trailers))
		// The client's own timer knows no details.
		info, ok := detail[*errdetails.ErrorInfo](err)
		if !ok {
			t.Logf("the own timer was first: %v", err)
			continue
		}
		check(t, err, codes.DeadlineExceeded, "RUN_TIMEOUT")
		run, _ := strconv.ParseFloat(info.Metadata["run_ms"], 64)
		if info.Metadata["execution"] != "STARTED" || run < 300 ||
			info.Metadata["kind"] != "sleep" || info.Metadata["pool"] != "one" ||
			pushback(t, trailers) != -1 {
			t.Errorf("%v %v", info, trailers)
		}
		told++
	}
	if told < calls-1 {
		t.Errorf("%d of %d calls were told why they ended", told, calls)
	}
}
