"""The consume-queue ext: its files, and the filters whose bit maps they hold."""
