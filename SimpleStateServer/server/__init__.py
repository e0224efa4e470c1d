"""The state server: receiver -> FIFO queue -> router -> handlers -> state table -> sender.

Architecture and messages: Li et al., IEEE Transactions on Services Computing 15(4), 2022, doi 10.1109/TSC.2020.3044043.
"""
