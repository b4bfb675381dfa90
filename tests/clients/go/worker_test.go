package clients

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	pb "waterwheel.dev/go/waterwheel/v1"
)

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
