// Writes the case of cases.json that a payload names, and answers the jobs of the kind `echo`.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

type message struct {
	Run    *struct{ ID, Kind string }
	Cancel *struct{ ID string }
	Bytes  int
}

func main() {
	var cases []struct{ Name, Writes string }
	file, _ := os.ReadFile(os.Args[1])
	if err := json.Unmarshal(file, &cases); err != nil {
		panic(err)
	}
	come, answers := bufio.NewReader(os.NewFile(3, "come")), os.NewFile(4, "go")
	answered := "1"
	answers.WriteString("{\"ready\":{\"protocol\":1}}\n")
	for {
		line, err := come.ReadBytes('\n')
		if err != nil {
			return
		}
		var message message
		if err := json.Unmarshal(line, &message); err != nil {
			panic(err)
		}
		payload := make([]byte, message.Bytes)
		io.ReadFull(come, payload)
		switch {
		case message.Cancel != nil:
			fmt.Fprintf(answers, "{\"failed\":{\"id\":%q,\"code\":\"CANCELLED\"}}\n", message.Cancel.ID)
		case message.Run.Kind == "echo":
			answered = message.Run.ID
			fmt.Fprintf(answers, "{\"done\":{\"id\":%q},\"bytes\":%d}\n%s", answered, len(payload), payload)
		default:
			for _, known := range cases {
				if known.Name != string(payload) {
					continue
				}
				values := strings.NewReplacer("$ID", message.Run.ID, "$OLD", answered, "$NEW", "999999",
					"$LONG", strings.Repeat("x", 1<<20))
				data := []byte{}
				for _, one := range values.Replace(known.Writes) {
					data = append(data, byte(one))
				}
				answers.Write(data)
			}
		}
	}
}
