"""Consuming: consumer groups, their filters and offsets; and the messages of a topic in log order.

Store ──▶ ConsumeServices ──▶ Consumer            at least once, shared among the consumers of a group
               │
               ├─ Topics, SubscriptionGroups, ConsumerFilters, offsets     config/*.json
               ├─ PullService                      the checks and answers of a broker
               └─ HoldService                      waits for messages

Store ──▶ ScheduleService, send_back, TransactionService     delayed, retried and transactional messages

open store ─────────────────────────▶ TopicReader ──▶ records in log order
store not open ──▶ GroupReading ──▶ TopicReader, and offsets of a group
"""
