// Runs scenarios with RocketMQ's Go client against one broker.
//
// Arguments: the address of its name server, how many scenarios run at a time, and their names. Standard output has one
// JSON object a scenario: its name, the lines that it said, and "error" if it could not go on.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// queuesOf returns the queues of a topic; none if it is unknown.
func (s *session) queuesOf(topic string) []*primitive.MessageQueue {
	asking, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{s.nameServer})))
	must(err)
	defer func() { _ = asking.Close() }()
	queues, err := asking.FetchPublishMessageQueues(background, topic)
	if err != nil {
		return nil
	}
	return queues
}

func main() {
	rlog.SetLogLevel("error")
	atATime, err := strconv.Atoi(os.Args[2])
	must(err)
	places := make(chan struct{}, atATime)
	var writing sync.Mutex
	var running sync.WaitGroup
	for _, name := range os.Args[3:] {
		scenario, found := scenarios[name]
		if !found {
			panic("no such scenario: " + name)
		}
		running.Add(1)
		places <- struct{}{}
		go func(name string) {
			defer running.Done()
			line := run(os.Args[1], name, scenario)
			<-places
			writing.Lock()
			defer writing.Unlock()
			fmt.Println(string(line))
		}(name)
	}
	running.Wait()
}
