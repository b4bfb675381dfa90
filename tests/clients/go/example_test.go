package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// told is what an example prints.
func told(t *testing.T, example, config string) []string {
	t.Helper()
	run := exec.Command("go", "run", example, start(t, config).address)
	run.Dir = "../../../examples/go"
	told, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, told)
	}
	return strings.Split(strings.TrimSpace(string(told)), "\n")
}

// The example of detached jobs does what it says.
func TestJobsExample(t *testing.T) {
	lines := told(t, "./jobs", everyday+"\n[store]\nmemory = true\n")
	if !strings.HasPrefix(lines[0], "created report-") || !strings.HasSuffix(lines[0], " true") {
		t.Errorf("created twice: %q", lines[0])
	}
	last := strings.Join(lines[max(len(lines)-3, 0):], "|")
	if last != "waited JOB_STATE_SUCCEEDED slept 300 ms|cancelled JOB_STATE_CANCELLED|retried JOB_STATE_SUCCEEDED" {
		t.Errorf("its ends: %q", lines)
	}
	if !strings.Contains(lines[len(lines)-5], "Output") {
		t.Errorf("its output: %q", lines)
	}
}

// The example of the documentation does what it says.
func TestExample(t *testing.T) {
	lines := told(t, ".", everyday)
	first, last := lines[0], lines[len(lines)-1]
	if !strings.HasPrefix(first, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824 by job ") {
		t.Errorf("a digest: %q", first)
	}
	if !strings.HasPrefix(lines[len(lines)-3], "output ") || !strings.HasPrefix(lines[len(lines)-2], "finished ") {
		t.Errorf("events: %q", lines)
	}
	if !strings.HasPrefix(last, "UNKNOWN_KIND ") || !strings.Contains(last, "NOT_STARTED") {
		t.Errorf("a refusal: %q", last)
	}
}

// far is a pool whose jobs attached workers run.
const far = `
[pool.far]
when_full = "wait"
[kind.thumbnail]
pool = "far"
remote = true
`

// goWorker builds the example of a worker that attaches.
func goWorker(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "worker")
	build := exec.Command("go", "build", "-o", program, "./worker")
	build.Dir = "../../../examples/go"
	if told, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, told)
	}
	return program
}

// work runs a worker of the given servers until the test ends.
func work(t *testing.T, command []string, servers ...string) *exec.Cmd {
	t.Helper()
	worker := exec.Command(command[0], command[1:]...)
	worker.Env = append(os.Environ(), "WATERWHEEL_ADDRESS="+strings.Join(servers, ","))
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		worker.Process.Kill()
		worker.Wait()
	})
	return worker
}

// attached is how many jobs the workers of a server can run at once.
func attached(t *testing.T, client pb.WorkerPoolServiceClient) uint32 {
	return pool(t, client, "far").Size.Workers
}

func TestWorkerKeepsTheProtocol(t *testing.T) {
	rows, err := exec.Command(binary(), "worker", "test", "--attach", "--output", "json", "--", goWorker(t)).Output()
	if err != nil {
		t.Error(err)
	}
	passed := 0
	for line := range strings.Lines(string(rows)) {
		var row struct{ Verdict string }
		if err := json.Unmarshal([]byte(line), &row); err != nil || row.Verdict != "pass" {
			t.Error(line)
		}
		passed++
	}
	if passed != 16 {
		t.Errorf("%d rows", passed)
	}
}

func TestWorkerRunsTheJobsOfAServer(t *testing.T) {
	server := start(t, far)
	client := server.client()
	// It waits for the worker, which is still to attach.
	early := background(within(t), client, "thumbnail", "early")
	worker := work(t, []string{goWorker(t)}, server.address)
	if err := await(t, early); err != nil {
		t.Fatal(err)
	}
	if slots := attached(t, client); slots != 4 {
		t.Errorf("%d slots", slots)
	}
	answer, err := client.Submit(within(t), submission("thumbnail", "late"))
	if err != nil || string(answer.Result.Output) != "late" {
		t.Errorf("%v, %v", answer, err)
	}
	worker.Process.Signal(syscall.SIGTERM)
	if err := worker.Wait(); err != nil {
		t.Error(err)
	}
	eventually(t, "its slots are gone", func() bool { return attached(t, client) == 0 })
}

// farTwice is a pool of attached workers that holds no caller; its jobs may run twice.
const farTwice = `
[pool.far]
[kind.thumbnail]
pool = "far"
remote = true
idempotent = true
`

// crew is workers that are all attached to the same servers.
type crew struct {
	t        *testing.T
	commands [][]string
	servers  []string
	working  []*exec.Cmd
}

// slots is how many jobs a server can give to all of them at once.
func (c *crew) slots() uint32 { return uint32(4 * len(c.working)) }

func (c *crew) start(index int) {
	c.working[index] = work(c.t, c.commands[index], c.servers...)
}

// replace lets one worker leave, kills another one, and starts both anew.
func (c *crew) replace(leaver, killed int) {
	c.t.Helper()
	leaves, dies := c.working[leaver], c.working[killed]
	leaves.Process.Signal(syscall.SIGTERM)
	dies.Process.Kill()
	if err := leaves.Wait(); err != nil {
		c.t.Error(err)
	}
	dies.Wait()
	c.start(leaver)
	c.start(killed)
}

// hire starts four workers in Go and four in Python; all of them in Go where the tests in Python have not run.
func hire(t *testing.T, servers ...string) *crew {
	t.Helper()
	inGo := []string{goWorker(t)}
	python, _ := filepath.Abs("../../../target/clients/python")
	inPython := []string{python + "/venv/bin/python", "../../../examples/python/worker.py"}
	if _, err := os.Stat(python + "/gen/waterwheel/v1/worker_service_pb2_grpc.py"); err != nil {
		t.Logf("all workers are in Go: %v", err)
		inPython = inGo
	}
	t.Setenv("PYTHONPATH", python+"/gen")
	c := &crew{t: t, servers: servers, working: make([]*exec.Cmd, 8)}
	c.commands = slices.Concat(slices.Repeat([][]string{inGo}, 4), slices.Repeat([][]string{inPython}, 4))
	for index := range c.commands {
		c.start(index)
	}
	return c
}

// ends counts how the calls of a load ended.
type ends struct {
	mutex sync.Mutex
	by    map[string]int
}

func (e *ends) count(end string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.by[end]++
}

// end is the reason of a call's end; the code where the client library made the error by itself.
func end(answer *pb.SubmitResponse, payload string, err error) string {
	info, ok := detail[*errdetails.ErrorInfo](err)
	switch {
	case ok:
		return info.Reason
	case err != nil:
		return status.Code(err).String()
	case string(answer.Result.Output) != payload:
		return "WRONG_OUTPUT"
	default:
		return "OK"
	}
}

// persistence is enough attempts for a call that its deadline ends first. Workers come back later on a busy machine.
const persistence = 100

// persistent is the service config of deploy/ with retries until the deadline.
func persistent(config map[string]any) {
	method := config["methodConfig"].([]any)[0].(map[string]any)
	method["retryPolicy"].(map[string]any)["maxAttempts"] = persistence
}

// press keeps some calls at a time on a channel with the service config of deploy/ as it is changed, until the function
// that it returns is called: it waits for the last call.
func (r *replicas) press(callers int, change func(map[string]any)) (*ends, func()) {
	config := grpc.WithDefaultServiceConfig(serviceConfig(r.t, change))
	attempts := grpc.WithMaxCallAttempts(persistence)
	client := pb.NewWorkerPoolServiceClient(connect(r.t, r.names.target(r.port), config, attempts))
	ctx, cancel := context.WithCancel(context.Background())
	ends := &ends{by: map[string]int{}}
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for number := 0; ctx.Err() == nil; number++ {
				own, cancel := context.WithTimeout(context.Background(), patience)
				payload := fmt.Sprint(caller, " ", number)
				answer, err := client.Submit(own, submission("thumbnail", payload))
				cancel()
				ends.count(end(answer, payload, err))
				if err != nil {
					// Refusals come at once: without a pause they would keep the workers from a busy machine.
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	stop := sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	r.t.Cleanup(stop)
	return ends, stop
}

// TestWorkersComeBackToEachServerThatRestarts ends two servers in turn, and some of the workers that are attached to
// both, while clients call: with retries each call ends with its own output, and without them with a reason.
func TestWorkersComeBackToEachServerThatRestarts(t *testing.T) {
	replicas := behindOneName(t, "30m")
	replicas.config = farTwice + "[drain]\nnotice = \"1s\"\nfinish = \"20s\"\n"
	addresses := []string{replicas.add(), replicas.add()}
	crew := hire(t, addresses[0]+":"+replicas.port, addresses[1]+":"+replicas.port)
	figures := func(address string) *pb.PoolStats { return pool(t, replicas.clients[address], "far") }
	complete := func(address string) {
		t.Helper()
		eventually(t, "all workers are attached", func() bool { return figures(address).Size.Workers == crew.slots() })
	}
	works := func(address string) {
		t.Helper()
		before := figures(address).Jobs.Completed
		eventually(t, "it works", func() bool { return figures(address).Jobs.Completed > before+200 })
	}
	for _, address := range addresses {
		complete(address)
	}
	patient, stopPatient := replicas.press(12, persistent)
	plain, stopPlain := replicas.press(4, balanced)
	begin := time.Now()
	var lost, refused uint64
	for _, end := range []func(address string){func(address string) { replicas.stop(address) }, replicas.kill} {
		for number, address := range addresses {
			works(address)
			end(address)
			replicas.start(address)
			complete(address)
			works(address)
			crew.replace(number, 4+number)
			complete(address)
			lost += figures(address).Jobs.Failed
			refused += rejected(figures(address), "NO_WORKERS")
		}
	}
	stopPatient()
	stopPlain()
	t.Logf("%v with retries, %v without, in %v", patient.by, plain.by, time.Since(begin))
	t.Logf("the servers lost %d jobs, and refused %d", lost, refused)
	honest := []string{"OK", "WORKER_LOST", "NO_WORKERS", "DRAINING", codes.Unavailable.String()}
	for end, count := range plain.by {
		if !slices.Contains(honest, end) {
			t.Errorf("%d calls ended with %s", count, end)
		}
	}
	if len(patient.by) != 1 || patient.by["OK"] == 0 {
		t.Errorf("some calls failed in spite of retries: %v", patient.by)
	}
}
