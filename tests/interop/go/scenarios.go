package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var scenarios = map[string]func(*session){
	"send-sync":            sendSync,
	"send-async":           sendAsync,
	"send-oneway":          sendOneway,
	"send-batch":           sendBatch,
	"send-compressed":      sendCompressed,
	"consume-concurrently": consumeConcurrently,
	"consume-orderly":      consumeOrderly,
	"consume-broadcasting": consumeBroadcasting,
	"consume-tags":         consumeTags,
	"consume-sql":          consumeSQL,
	"pull":                 pull,
	"retry":                retry,
	"delay":                delay,
	"transaction":          transaction,
	"request-reply":        requestReply,
	"trace":                trace,
	"rebalance":            rebalance,
	"namespace":            namespace,
	"retry-orderly":        retryOrderly,
	"send-refused":         sendRefused,
	"administer":           administer,
	"from-where":           fromWhere,
}

var background = context.Background()

func sendSync(s *session) {
	made := s.producer()
	s.create(made, s.topic())
	for i := 0; i < 8; i++ {
		one := message(s.topic(), i%4, fmt.Sprintf("body%d", i)).WithTag(fmt.Sprintf("tag%d", i%2)).WithKeys([]string{fmt.Sprintf("key%d", i), "other"})
		one.Flag = int32(i - 4)
		result, err := made.SendSync(background, one)
		must(err)
		s.say(describeResult(result))
	}
	s.sayAll("stored", describedAll(s.stored(s.topic(), 9), true))
}

func sendAsync(s *session) {
	made := s.producer()
	s.create(made, s.topic())
	var group sync.WaitGroup
	var good int32
	for i := 0; i < 50; i++ {
		group.Add(1)
		must(made.SendAsync(background, func(_ context.Context, result *primitive.SendResult, err error) {
			if err == nil && result.Status == primitive.SendOK {
				atomic.AddInt32(&good, 1)
			}
			group.Done()
		}, message(s.topic(), i%4, fmt.Sprintf("body%02d", i))))
	}
	group.Wait()
	bodies := bodiesOf(s.stored(s.topic(), 51))
	sort.Strings(bodies)
	s.say(good, bodies)
}

func sendOneway(s *session) {
	made := s.producer()
	s.create(made, s.topic())
	for i := 0; i < 20; i++ {
		must(made.SendOneWay(background, message(s.topic(), i%4, fmt.Sprintf("body%02d", i))))
	}
	bodies := bodiesOf(s.stored(s.topic(), 21))
	sort.Strings(bodies)
	s.say(bodies)
}

func sendBatch(s *session) {
	made := s.producer()
	s.create(made, s.topic())
	for _, size := range []int{1, 3, 40} {
		var batch []*primitive.Message
		for i := 0; i < size; i++ {
			one := message(s.topic(), 1, fmt.Sprintf("%d.%d", size, i)).WithTag(fmt.Sprintf("tag%d", i%3)).WithKeys([]string{fmt.Sprintf("key%d", i)})
			one.WithProperty("number", fmt.Sprintf("n%d", i))
			batch = append(batch, one)
		}
		result, err := made.SendSync(background, batch...)
		must(err)
		s.say(describeResult(result))
	}
	s.sayAll("stored", describedAll(s.stored(s.topic(), 45), true))
}

func sendCompressed(s *session) {
	made := s.producer(producer.WithCompressMsgBodyOverHowmuch(1000))
	s.create(made, s.topic())
	result, err := made.SendSync(background, message(s.topic(), 0, strings.Repeat("x", 50_000)))
	must(err)
	s.say(describeResult(result))
	s.sayAll("stored", describedAll(s.stored(s.topic(), 2), true))
}

func sendAll(s *session, made rocketmq.Producer, count int, tag func(int) string) {
	s.create(made, s.topic())
	for i := 0; i < count; i++ {
		one := message(s.topic(), i%4, fmt.Sprintf("body%02d", i)).WithTag(tag(i))
		one.WithProperty("n", fmt.Sprint(i))
		_, err := made.SendSync(background, one)
		must(err)
	}
}

func sameTag(int) string { return "tag" }

func consumeConcurrently(s *session) {
	made := s.producer()
	sendAll(s, made, 40, sameTag)
	var seen received
	reader := s.consumer(s.group())
	seen.subscribe(reader, s.topic(), tags("*"), succeeds)
	seen.await(40)
	s.sayAll("consumed", seen.described(true))
	must(reader.Shutdown())
	// Another consumer of the group goes on from there.
	var further received
	further.subscribe(s.consumer(s.group()), s.topic(), tags("*"), succeeds)
	_, err := made.SendSync(background, message(s.topic(), 2, "further"))
	must(err)
	further.await(1)
	s.say("afterwards", further.bodies())
}

func consumeOrderly(s *session) {
	made := s.producer()
	sendAll(s, made, 40, sameTag)
	var seen received
	seen.subscribe(s.consumer(s.group(), consumer.WithConsumerOrder(true)), s.topic(), tags("*"), succeeds)
	seen.await(40)
	byQueue := map[int][]string{}
	for _, message := range seen.all() {
		byQueue[message.Queue.QueueId] = append(byQueue[message.Queue.QueueId], text(message))
	}
	for id := 0; id < queueCount; id++ {
		s.say("queue", id, byQueue[id])
	}
}

func consumeBroadcasting(s *session) {
	made := s.producer()
	s.create(made, s.topic())
	var both [2]received
	for i := range both {
		reader := s.consumer(s.group(), consumer.WithConsumerModel(consumer.BroadCasting))
		both[i].subscribe(reader, s.topic(), tags("*"), succeeds)
	}
	for i := 0; i < 20; i++ {
		_, err := made.SendSync(background, message(s.topic(), i%4, fmt.Sprintf("body%02d", i)))
		must(err)
	}
	for i := range both {
		both[i].await(20)
		s.say("consumed", both[i].bodies())
	}
}

func consumeTags(s *session) {
	// "Aa" and "BB" have one hash code.
	names := []string{"Aa", "BB", "C", "D"}
	sendAll(s, s.producer(), 40, func(i int) string { return names[i/4%4] })
	for i, expression := range []string{"Aa", "Aa || C", "BB||D", "*"} {
		var seen received
		reader := s.consumer(fmt.Sprintf("%s-%d", s.group(), i))
		seen.subscribe(reader, s.topic(), tags(expression), succeeds)
		seen.await([]int{12, 20, 20, 40}[i])
		s.say(expression, seen.bodies())
		must(reader.Shutdown())
	}
}

func consumeSQL(s *session) {
	sendAll(s, s.producer(), 40, sameTag)
	var seen received
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: "n > 10 AND n <= 30 AND TAGS = 'tag'"}
	seen.subscribe(s.consumer(s.group()), s.topic(), selector, succeeds)
	seen.await(20)
	s.say(seen.bodies())
}

func pull(s *session) {
	made := s.producer()
	sendAll(s, made, 40, func(i int) string { return fmt.Sprintf("t%d", i/4%2) })
	s.stored(s.topic(), 41)
	for _, expression := range []string{"*", "t1"} {
		reader, err := rocketmq.NewPullConsumer(
			consumer.WithNameServer(primitive.NamesrvAddr{s.nameServer}),
			consumer.WithGroupName(s.group()+"-"+strings.ReplaceAll(expression, "*", "all")),
			consumer.WithInstance(instance()),
		)
		must(err)
		must(reader.Subscribe(s.topic(), tags(expression)))
		must(reader.Start())
		queue := &primitive.MessageQueue{Topic: s.topic(), BrokerName: "broker-a", QueueId: 1}
		// A client pulls by tags from brokers whose version it knows.
		await(func() bool {
			_, err := reader.PullFrom(background, queue, 0, 1)
			return err == nil
		})
		for _, offset := range []int64{0, 7, 9, 100} {
			result, err := reader.PullFrom(background, queue, offset, 4)
			must(err)
			s.say(expression, offset, result.Status, result.NextBeginOffset, result.MinOffset, result.MaxOffset, bodiesOf(result.GetMessageExts()))
		}
		must(reader.Shutdown())
	}
}

func retry(s *session) {
	made := s.producer()
	s.create(made, s.topic())
	// A consumer's first start makes its group's retry topic; the next one then finds it at once.
	var none received
	introduced := s.consumer(s.group())
	none.subscribe(introduced, s.topic(), tags("*"), succeeds)
	await(func() bool { return len(s.queuesOf("%RETRY%"+s.group())) == 1 })
	must(introduced.Shutdown())
	for i := 0; i < 4; i++ {
		_, err := made.SendSync(background, message(s.topic(), 0, fmt.Sprintf("body%d", i)).WithTag("tag"))
		must(err)
	}
	var seen received
	reader := s.consumer(s.group(), consumer.WithMaxReconsumeTimes(2))
	seen.subscribe(reader, s.topic(), tags("*"), func(message *primitive.MessageExt) consumer.ConsumeResult {
		body := text(message)
		if body == "body1" && message.ReconsumeTimes == 0 || body == "body3" {
			return consumer.ConsumeRetryLater
		}
		return consumer.ConsumeSuccess
	})
	seen.await(4 + 1 + 2)
	s.sayAll("consumed", seen.described(false))
	s.sayAll("dead letters", describedAll(s.stored("%DLQ%"+s.group(), 1), false))
}

func delay(s *session) {
	made := s.producer()
	s.create(made, s.topic())
	var seen received
	seen.subscribe(s.consumer(s.group()), s.topic(), tags("*"), succeeds)
	for _, level := range []int{1, 2} {
		result, err := made.SendSync(background, message(s.topic(), 1, fmt.Sprintf("level %d", level)).WithDelayTimeLevel(level))
		must(err)
		s.say(result.Status, result.MessageQueue.QueueId)
	}
	seen.await(2)
	s.sayAll("consumed", seen.described(false))
	for _, message := range seen.all() {
		waited := time.Duration(message.StoreTimestamp-message.BornTimestamp) * time.Millisecond
		s.say("waited", waited >= time.Second)
	}
}

// settler says what becomes of a message, at first and each time the broker asks.
type settler struct{ asked int32 }

func (t *settler) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch body := string(message.Body); {
	case strings.HasPrefix(body, "commit"):
		return primitive.CommitMessageState
	case strings.HasPrefix(body, "rollback"):
		return primitive.RollbackMessageState
	default:
		return primitive.UnknowState
	}
}

func (t *settler) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	atomic.AddInt32(&t.asked, 1)
	if strings.Contains(string(message.Body), "committed") {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func transaction(s *session) {
	plain := s.producer()
	s.create(plain, s.topic())
	var seen received
	seen.subscribe(s.consumer(s.group()), s.topic(), tags("*"), succeeds)
	listener := &settler{}
	made, err := rocketmq.NewTransactionProducer(
		listener,
		producer.WithNameServer(primitive.NamesrvAddr{s.nameServer}),
		producer.WithGroupName("GO-T-"+s.name),
		producer.WithInstanceName(instance()),
		producer.WithQueueSelector(producer.NewManualQueueSelector()),
	)
	must(err)
	must(made.Start())
	s.closing = append(s.closing, made.Shutdown)
	for i, body := range []string{"commit 1", "rollback 2", "later committed", "later rolled back"} {
		result, err := made.SendMessageInTransaction(background, message(s.topic(), i, body))
		must(err)
		s.say(body, result.Status, result.State)
	}
	seen.await(2)
	await(func() bool { return atomic.LoadInt32(&listener.asked) >= 2 })
	s.sayAll("consumed", seen.described(false))
}

func requestReply(s *session) {
	replier := s.producer()
	s.create(replier, s.topic())
	var seen received
	seen.subscribe(s.consumer(s.group()), s.topic(), tags("*"), func(message *primitive.MessageExt) consumer.ConsumeResult {
		if text(message) == first {
			return consumer.ConsumeSuccess
		}
		reply, err := consumer.CreateReplyMessage(message, []byte("reply to "+text(message)))
		must(err)
		// The client forgets the body.
		reply.Body = []byte("reply to " + text(message))
		reply.Queue = &primitive.MessageQueue{Topic: reply.Topic, BrokerName: "broker-a", QueueId: 0}
		// Refused until the broker knows the producer that asks.
		_, _ = replier.SendSync(background, reply)
		return consumer.ConsumeSuccess
	})
	asking := s.producer(producer.WithGroupName("GO-P-asking-" + s.name))
	_, err := asking.SendSync(background, message(s.topic(), 0, first))
	must(err)
	// Replies reach a producer that the broker knows by a heartbeat, which this client sends by and by.
	var answer *primitive.Message
	await(func() bool {
		got, err := asking.Request(background, 3*time.Second, message(s.topic(), 1, "question"))
		answer = got
		return err == nil && got != nil
	})
	if answer != nil {
		s.say(string(answer.Body), properties(answer.GetProperties()))
	}
}

func trace(s *session) {
	made := s.producer(producer.WithTrace(&primitive.TraceConfig{
		Access:       primitive.Local,
		NamesrvAddrs: []string{s.nameServer},
		Resolver:     primitive.NewPassthroughResolver([]string{s.nameServer}),
	}))
	s.create(made, s.topic())
	_, err := made.SendSync(background, message(s.topic(), 1, "body"))
	must(err)
	var lines []string
	for _, message := range s.stored("RMQ_SYS_TRACE_TOPIC", 2) {
		// What is traced in one turn of the client comes in one message.
		for _, one := range strings.FieldsFunc(string(message.Body), func(r rune) bool { return r == '\x02' }) {
			fields := strings.Split(one, "\x01")
			lines = append(lines, fmt.Sprintf("%s fields=%d", fields[0], len(fields)))
		}
	}
	s.sayAll("traces", lines)
}

func rebalance(s *session) {
	made := s.producer()
	s.create(made, s.topic())
	stop := make(chan struct{})
	sent := 0
	var sending sync.WaitGroup
	sending.Add(1)
	go func() {
		defer sending.Done()
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := made.SendSync(background, message(s.topic(), sent%4, fmt.Sprint(sent))); err != nil {
					s.say("failed", err)
					return
				}
				sent++
				time.Sleep(5 * time.Millisecond)
			}
		}
	}()
	var one, two received
	firstReader, secondReader := s.consumer(s.group()), s.consumer(s.group())
	one.subscribe(firstReader, s.topic(), tags("*"), succeeds)
	await(func() bool { return len(one.all()) > 20 })
	two.subscribe(secondReader, s.topic(), tags("*"), succeeds)
	s.say("two consume", await(func() bool { return len(two.all()) > 20 }))
	must(firstReader.Shutdown())
	before := len(two.all())
	queues := func() int {
		found := map[int]bool{}
		for _, message := range two.all()[before:] {
			found[message.Queue.QueueId] = true
		}
		return len(found)
	}
	s.say("one consumes all", await(func() bool { return queues() == queueCount }))
	close(stop)
	sending.Wait()
	all := func() int {
		found := map[string]bool{}
		for _, seen := range []*received{&one, &two} {
			for _, body := range seen.bodies() {
				found[body] = true
			}
		}
		return len(found)
	}
	s.say("all consumed", await(func() bool { return all() == sent }))
}
