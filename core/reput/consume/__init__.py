"""Consuming: consumer groups, their filters and offsets; and the messages of a topic in log order.

Store ──▶ ConsumeServices ──▶ Consumer            at least once, shared among the consumers of a group
               │
               ├─ Topics, SubscriptionGroups, ConsumerFilters, offsets     config/*.json
               ├─ GroupReader                      reads a queue for a group
               ├─ ArrivalService                   wakes consumers and held pulls
               └─ PullService, HoldService         the answers of a broker

Store ──▶ ScheduleService, send_back, TransactionService     delayed, retried and transactional messages

open store ─────────────────────────▶ TopicReader ──▶ records in log order
store not open ──▶ GroupReading ──▶ TopicReader, and offsets of a group
"""
