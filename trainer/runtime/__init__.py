"""What MXNet needs to run in a process of a job: its library, its variables, its sockets."""
