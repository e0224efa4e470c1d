"""How the processes of a job find each other, compare their set-ups, and notice that one is gone."""
