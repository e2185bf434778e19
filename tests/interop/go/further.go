package main

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// namespace has topics and groups whose names begin with that of their namespace.
func namespace(s *session) {
	s.create(s.producer(producer.WithNamespace("space")), s.topic())
	made := s.producer(producer.WithNamespace("space"), producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for i := 0; i < 8; i++ {
		_, err := made.SendSync(background, message(s.topic(), 0, fmt.Sprintf("body%d", i)).WithShardingKey(fmt.Sprintf("key%d", i%3)))
		must(err)
	}
	var seen received
	reader := s.consumer(s.group(), consumer.WithNamespace("space"), consumer.WithMaxReconsumeTimes(1))
	seen.subscribe(reader, s.topic(), tags("*"), func(message *primitive.MessageExt) consumer.ConsumeResult {
		if text(message) == "body3" {
			return consumer.ConsumeRetryLater
		}
		return consumer.ConsumeSuccess
	})
	seen.await(8 + 1)
	s.say("consumed", seen.bodies())
	s.sayAll("stored", describedAll(s.stored("space%"+s.topic(), 9), true))
	s.sayAll("dead letters", describedAll(s.stored("%DLQ%space%"+s.group(), 1), false))
}

// retryOrderly has a message that is tried again in its place, before those behind it.
func retryOrderly(s *session) {
	sendAll(s, s.producer(), 8, sameTag)
	var seen received
	reader := s.consumer(
		s.group(),
		consumer.WithConsumerOrder(true),
		consumer.WithMaxReconsumeTimes(2),
		consumer.WithSuspendCurrentQueueTimeMillis(100*time.Millisecond),
	)
	seen.subscribe(reader, s.topic(), tags("*"), func(message *primitive.MessageExt) consumer.ConsumeResult {
		if text(message) == "body01" && message.ReconsumeTimes < 2 {
			return consumer.SuspendCurrentQueueAMoment
		}
		return consumer.ConsumeSuccess
	})
	seen.await(8 + 2)
	var inQueue []string
	for _, message := range seen.all() {
		if message.Queue.QueueId == 1 {
			inQueue = append(inQueue, fmt.Sprintf("%s/%d", text(message), message.ReconsumeTimes))
		}
	}
	s.say("queue 1", inQueue)
}

// sendRefused has what a broker does not take.
func sendRefused(s *session) {
	made := s.producer(producer.WithRetry(0))
	s.create(made, s.topic())
	for _, one := range []*primitive.Message{
		message("TBW102", 0, "body"),
		message("no^topic", 0, "body"),
		message(strings.Repeat("t", 128), 0, "body"),
		message(s.topic(), 99, "body"),
		message(s.topic(), 0, strings.Repeat("x", 5<<20)),
		message(s.topic(), 0, "level").WithDelayTimeLevel(-5),
	} {
		result, err := made.SendSync(background, one)
		s.say(one.Topic[:6], len(one.Body), "refused:", err != nil || result.Status != primitive.SendOK)
	}
	long := message(s.topic(), 0, "long properties")
	long.WithProperty("long", strings.Repeat("p", 40_000))
	_, err := made.SendSync(background, long)
	s.say("long properties refused:", err != nil)
}

// administer makes and removes a topic.
func administer(s *session) {
	made := s.producer()
	s.create(made, s.topic())
	tools, err := admin.NewAdmin(
		admin.WithResolver(primitive.NewPassthroughResolver([]string{s.nameServer})),
		admin.WithNamespace(""),
	)
	must(err)
	s.closing = append(s.closing, tools.Close)
	broker := s.stored(s.topic(), 1)[0].StoreHost
	must(tools.CreateTopic(background, admin.WithTopicCreate("GO-made"), admin.WithBrokerAddrCreate(broker), admin.WithReadQueueNums(3), admin.WithWriteQueueNums(3)))
	has := func(topic string) bool {
		list, err := tools.FetchAllTopicList(background)
		must(err)
		for _, one := range list.TopicList {
			if one == topic {
				return true
			}
		}
		return false
	}
	s.say("made", await(func() bool { return has("GO-made") }))
	queues, err := tools.FetchPublishMessageQueues(background, "GO-made")
	must(err)
	s.say("queues", len(queues))
	var seen received
	seen.subscribe(s.consumer(s.group()), s.topic(), tags("*"), succeeds)
	await(func() bool {
		groups, err := tools.GetAllSubscriptionGroup(background, broker, 3*time.Second)
		must(err)
		_, known := groups.SubscriptionGroupTable[s.group()]
		return known
	})
	groups, err := tools.GetAllSubscriptionGroup(background, broker, 3*time.Second)
	must(err)
	group := groups.SubscriptionGroupTable[s.group()]
	s.say("group", group.GroupName, group.ConsumeEnable, group.RetryQueueNums, group.RetryMaxTimes)
	must(tools.DeleteTopic(background, admin.WithTopicDelete("GO-made"), admin.WithBrokerAddrDelete(broker)))
	s.say("removed", await(func() bool { return !has("GO-made") }))
}

// fromWhere has groups that begin at the end, or at a time.
func fromWhere(s *session) {
	made := s.producer()
	s.create(made, s.topic())
	send := func(bodies ...string) {
		for _, body := range bodies {
			_, err := made.SendSync(background, message(s.topic(), 0, body))
			must(err)
		}
	}
	send("1", "2")
	time.Sleep(2 * time.Second)
	between := time.Now().Add(-time.Second)
	send("3", "4")
	for name, where := range []consumer.ConsumeFromWhere{consumer.ConsumeFromLastOffset, consumer.ConsumeFromTimestamp} {
		name := fmt.Sprint(name)
		var seen received
		reader := s.consumer(
			s.group()+"-"+name,
			consumer.WithConsumeFromWhere(where),
			consumer.WithConsumeTimestamp(between.Format("20060102150405")),
		)
		seen.subscribe(reader, s.topic(), tags("*"), succeeds)
		time.Sleep(2 * time.Second)
		send("further " + name)
		await(func() bool {
			bodies := seen.bodies()
			at := sort.SearchStrings(bodies, "further "+name)
			return at < len(bodies) && bodies[at] == "further "+name
		})
		must(reader.Shutdown())
		s.say(name, seen.bodies())
	}
}
