package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net"
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

const (
	waitMax = 60 * time.Second
	// The message that creates a topic.
	first = "first"
	// The Go client always asks for so many.
	queueCount = 4
)

var instances int32

// Properties whose values differ from run to run.
var changing = map[string]bool{
	"UNIQ_KEY": true, "ORIGIN_MESSAGE_ID": true, "MAX_OFFSET": true, "__transactionId__": true, "CORRELATION_ID": true,
	"REPLY_TO_CLIENT": true, "ARRIVE_TIME": true, "PUSH_REPLY_TIME": true, "CONSUME_START_TIME": true, "REAL_QID": true,
}

// session has the clients of one scenario, and what it says: the same lines at every broker that keeps the protocol.
type session struct {
	nameServer string
	name       string
	mutex      sync.Mutex
	lines      []string
	closing    []func() error
}

func (s *session) say(words ...any) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lines = append(s.lines, strings.TrimSuffix(fmt.Sprintln(words...), "\n"))
}

func (s *session) sayAll(title string, lines []string) {
	s.say(title, len(lines))
	for _, line := range lines {
		s.say(" ", line)
	}
}

func (s *session) topic() string { return "GO-" + s.name }

func (s *session) group() string { return "GO-G-" + s.name }

func (s *session) close() {
	for i := len(s.closing) - 1; i >= 0; i-- {
		_ = s.closing[i]()
	}
}

// must ends a scenario that cannot go on.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func instance() string { return fmt.Sprintf("go-client-%d", atomic.AddInt32(&instances, 1)) }

func (s *session) producer(options ...producer.Option) rocketmq.Producer {
	made, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{s.nameServer}),
		producer.WithGroupName("GO-P-" + s.name),
		producer.WithInstanceName(instance()),
		producer.WithQueueSelector(producer.NewManualQueueSelector()),
		producer.WithSendMsgTimeout(10 * time.Second),
		producer.WithRetry(2),
	}, options...)...)
	must(err)
	must(made.Start())
	s.closing = append(s.closing, made.Shutdown)
	return made
}

func (s *session) consumer(group string, options ...consumer.Option) rocketmq.PushConsumer {
	made, err := rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNameServer(primitive.NamesrvAddr{s.nameServer}),
		consumer.WithGroupName(group),
		consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, options...)...)
	must(err)
	s.closing = append(s.closing, made.Shutdown)
	return made
}

func message(topic string, queueID int, body string) *primitive.Message {
	made := primitive.NewMessage(topic, []byte(body))
	made.Queue = &primitive.MessageQueue{Topic: topic, BrokerName: "broker-a", QueueId: queueID}
	return made
}

// create makes a topic by a first message to its queue 0.
func (s *session) create(producer rocketmq.Producer, topic string) {
	_, err := producer.SendSync(context.Background(), message(topic, 0, first))
	must(err)
}

func await(reached func() bool) bool {
	end := time.Now().Add(waitMax)
	for !reached() {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(20 * time.Millisecond)
	}
	return true
}

func shape(ids string) string {
	var lengths []string
	for _, id := range strings.Split(ids, ",") {
		lengths = append(lengths, fmt.Sprint(len(id)))
	}
	return strings.Join(lengths, ",")
}

func describeResult(result *primitive.SendResult) string {
	return fmt.Sprintf(
		"status=%d queue=%s:%d offset=%d msgId=%s offsetMsgId=%s transactionId=%s region=%s trace=%t",
		result.Status, result.MessageQueue.BrokerName, result.MessageQueue.QueueId, result.QueueOffset,
		shape(result.MsgID), shape(result.OffsetMsgID), shape(result.TransactionID), result.RegionID, result.TraceOn,
	)
}

func text(message *primitive.MessageExt) string {
	if len(message.Body) > 100 {
		return fmt.Sprintf("%d bytes, CRC %d", len(message.Body), crc32.ChecksumIEEE(message.Body))
	}
	return string(message.Body)
}

func properties(all map[string]string) string {
	var pairs []string
	for name, value := range all {
		if changing[name] {
			value = "*"
		}
		pairs = append(pairs, name+"="+value)
	}
	sort.Strings(pairs)
	return "{" + strings.Join(pairs, ", ") + "}"
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

func describe(message *primitive.MessageExt, placed bool) string {
	place := "*"
	if placed {
		place = fmt.Sprint(message.QueueOffset)
	}
	return fmt.Sprintf(
		"%s %s:%d:%s flag=%d sysFlag=%d reconsumeTimes=%d prepared=%t born=%s store=%s crc=%d msgId=%s %s",
		text(message), message.Topic, message.Queue.QueueId, place, message.Flag, message.SysFlag, message.ReconsumeTimes,
		message.PreparedTransactionOffset > 0, hostOf(message.BornHost), hostOf(message.StoreHost), message.BodyCRC,
		shape(message.MsgId), properties(message.GetProperties()),
	)
}

// received is what a consumer was given, but for the messages that created topics.
type received struct {
	mutex    sync.Mutex
	messages []*primitive.MessageExt
}

func (r *received) add(message *primitive.MessageExt) {
	if text(message) == first {
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.messages = append(r.messages, message)
}

func (r *received) all() []*primitive.MessageExt {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return append([]*primitive.MessageExt(nil), r.messages...)
}

// await waits for so many, and a little longer for those that should not come.
func (r *received) await(count int) {
	await(func() bool { return len(r.all()) >= count })
	time.Sleep(300 * time.Millisecond)
}

func (r *received) bodies() []string {
	var bodies []string
	for _, message := range r.all() {
		bodies = append(bodies, text(message))
	}
	sort.Strings(bodies)
	return bodies
}

func (r *received) described(placed bool) []string {
	var lines []string
	for _, message := range r.all() {
		lines = append(lines, describe(message, placed))
	}
	sort.Strings(lines)
	return lines
}

type verdict func(message *primitive.MessageExt) consumer.ConsumeResult

func succeeds(*primitive.MessageExt) consumer.ConsumeResult { return consumer.ConsumeSuccess }

// subscribe starts a consumer, and keeps what it is given.
func (r *received) subscribe(made rocketmq.PushConsumer, topic string, selector consumer.MessageSelector, judge verdict) {
	must(made.Subscribe(topic, selector, func(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		result := consumer.ConsumeSuccess
		for _, message := range batch {
			r.add(message)
			if one := judge(message); one != consumer.ConsumeSuccess {
				result = one
			}
		}
		return result, nil
	}))
	must(made.Start())
}

func tags(expression string) consumer.MessageSelector {
	return consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
}

// stored returns what the queues of a topic hold, once they show so many messages.
func (s *session) stored(topic string, count int) []*primitive.MessageExt {
	var mutex sync.Mutex
	var found []*primitive.MessageExt
	reader := s.consumer("GO-stored-" + strings.NewReplacer("%", "_").Replace(topic))
	must(reader.Subscribe(topic, tags("*"), func(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mutex.Lock()
		defer mutex.Unlock()
		found = append(found, batch...)
		return consumer.ConsumeSuccess, nil
	}))
	must(reader.Start())
	await(func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return len(found) >= count
	})
	must(reader.Shutdown())
	sort.Slice(found, func(i, j int) bool {
		one, other := found[i], found[j]
		return one.Queue.QueueId < other.Queue.QueueId || one.Queue.QueueId == other.Queue.QueueId && one.QueueOffset < other.QueueOffset
	})
	return found
}

func bodiesOf(messages []*primitive.MessageExt) []string {
	var bodies []string
	for _, message := range messages {
		bodies = append(bodies, text(message))
	}
	return bodies
}

func describedAll(messages []*primitive.MessageExt, placed bool) []string {
	var lines []string
	for _, message := range messages {
		lines = append(lines, describe(message, placed))
	}
	return lines
}

type outcome struct {
	Scenario string   `json:"scenario"`
	Lines    []string `json:"lines"`
	Error    string   `json:"error,omitempty"`
	Ms       int64    `json:"ms"`
}

func run(nameServer string, name string, scenario func(*session)) []byte {
	s := &session{nameServer: nameServer, name: name}
	begin := time.Now()
	failure := func() (failure string) {
		defer s.close()
		defer func() {
			if problem := recover(); problem != nil {
				failure = fmt.Sprint(problem)
			}
		}()
		scenario(s)
		return ""
	}()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	line, err := json.Marshal(outcome{name, append([]string{}, s.lines...), failure, time.Since(begin).Milliseconds()})
	must(err)
	return line
}
