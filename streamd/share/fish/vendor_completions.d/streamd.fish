# Completion of streamd for fish. Written by scripts/manual, from the commands themselves.
function _streamd_at --argument-names wanted at --description 'whether that command is typed, up to that place'
    set --local command ''
    set --local place 0
    set --local before ''
    for word in (commandline --tokenize --current-process --cut-at-cursor)[2..]
        if test -n "$before"
            set before ''
            continue
        end
        switch $word
            case --config --endpoint --epochs --every --format --load --output --rows --sample --shard --size --trainers -o
                set before $word
            case '-*'
            case '*'
                if contains -- "$command $word" ' init' ' serve' ' check' ' status' ' top' ' show' ' probe' ' pack' ' schema' ' completion' ' demo' ' service' ' service install' ' service remove'
                    set command "$command $word"
                    set place 0
                else
                    set place (math $place + 1)
                end
        end
    end
    test "$command" = "$wanted"; and test "$at" = '' -o "$at" = $place
end

function _streamd_streams
    set --local program (string replace --regex '^~/' $HOME/ (commandline --tokenize --current-process)[1])
    set program (string replace --regex -- '-train$' '' $program)
    $program streams (commandline --cut-at-cursor | string collect) 2>/dev/null
end

complete --command streamd --no-files
complete --command streamd --condition "_streamd_at '' 0" --arguments init --description 'Writes a first config.yaml for the data at PATH: a folder of images, a .csv, .tsv or .parquet table, or tars'
complete --command streamd --condition "_streamd_at '' 0" --arguments serve --description 'Serves the streams of a configuration until SIGTERM or Ctrl-C; or PATH, as the configuration of init would'
complete --command streamd --condition "_streamd_at '' 0" --arguments check --description 'Looks at the configuration and reads and decodes every file, as the daemon would'
complete --command streamd --condition "_streamd_at '' 0" --arguments status --description 'Shows who reads what, how fast, and what could be better'
complete --command streamd --condition "_streamd_at '' 0" --arguments top --description 'Shows the way of the data as it goes, where it waits, and who gets how much; Ctrl-C ends it'
complete --command streamd --condition "_streamd_at '' 0" --arguments show --description 'Draws any batch of a running daemon as one picture: what trainers get, or got, at that place'
complete --command streamd --condition "_streamd_at '' 0" --arguments probe --description 'Drains a stream as a trainer that needs no time would: the rate, the waiting, the receipts'
complete --command streamd --condition "_streamd_at '' 0" --arguments pack --description 'Writes the samples of a stream as one store: decoded once, read ever after'
complete --command streamd --condition "_streamd_at '' 0" --arguments schema --description 'Prints the JSON schema of config.yaml, by which editors complete keys, explain them and underline mistakes'
complete --command streamd --condition "_streamd_at '' 0" --arguments completion --description 'Prints a script by which a shell completes the commands, their options, and the names of streams'
complete --command streamd --condition "_streamd_at '' 0" --arguments demo --description 'Draws roads with a steering angle, serves them, trains on them, and kills the daemon on the way'
complete --command streamd --condition "_streamd_at '' 0" --arguments service --description 'Makes streamd a service of this host, under systemd, or takes it away again'
complete --command streamd --condition "_streamd_at ''" --long-option version --description 'Print the version and exit'
complete --command streamd --condition "_streamd_at ''" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' init' 0" --force-files
complete --command streamd --condition "_streamd_at ' init'" --long-option size --exclusive --description 'The size of the images, N or HEIGHTxWIDTH; without it the pictures\' own if all are equal, else 224'
complete --command streamd --condition "_streamd_at ' init'" --short-option o --long-option output --require-parameter --force-files --description 'The configuration to write; - prints it'
complete --command streamd --condition "_streamd_at ' init'" --long-option force --description 'Replace the file if it is there'
complete --command streamd --condition "_streamd_at ' init'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' serve' 0" --force-files
complete --command streamd --condition "_streamd_at ' serve'" --long-option config --require-parameter --force-files --description 'The configuration; default config.yaml'
complete --command streamd --condition "_streamd_at ' serve'" --long-option size --exclusive --description 'With PATH. The size of the images, N or HEIGHTxWIDTH; without it the pictures\' own if all are equal, else 224'
complete --command streamd --condition "_streamd_at ' serve'" --long-option rescan --description 'List the samples anew, though they are known'
complete --command streamd --condition "_streamd_at ' serve'" --long-option verbose --description 'Log more'
complete --command streamd --condition "_streamd_at ' serve'" --long-option log-json --description 'Log one JSON object a line'
complete --command streamd --condition "_streamd_at ' serve'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' check'" --long-option config --require-parameter --force-files --description 'The configuration'
complete --command streamd --condition "_streamd_at ' check'" --long-option quick --description 'Read 500 files of each stream'
complete --command streamd --condition "_streamd_at ' check'" --long-option sample --exclusive --description 'Read N files of each stream'
complete --command streamd --condition "_streamd_at ' check'" --long-option all --description 'Name every class, copy and unreadable file'
complete --command streamd --condition "_streamd_at ' check'" --long-option json --description 'Print one JSON object on standard output'
complete --command streamd --condition "_streamd_at ' check'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' status'" --long-option endpoint --exclusive --description 'The daemon; default $STREAMD_ENDPOINT, then this host\'s'
complete --command streamd --condition "_streamd_at ' status'" --long-option json --description 'Print one JSON object on standard output'
complete --command streamd --condition "_streamd_at ' status'" --long-option url --description 'Print the dashboard\'s address, and no more'
complete --command streamd --condition "_streamd_at ' status'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' top'" --long-option endpoint --exclusive --description 'The daemon; default $STREAMD_ENDPOINT, then this host\'s'
complete --command streamd --condition "_streamd_at ' top'" --long-option every --exclusive --description 'Time between two looks, such as 500ms'
complete --command streamd --condition "_streamd_at ' top'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' show' 0" --arguments '(_streamd_streams)'
complete --command streamd --condition "_streamd_at ' show'" --short-option o --long-option output --require-parameter --force-files --description 'The PNG; default batch-STREAM-EPOCH-INDEX.png'
complete --command streamd --condition "_streamd_at ' show'" --long-option rows --exclusive --description 'Show the first N rows at most'
complete --command streamd --condition "_streamd_at ' show'" --long-option endpoint --exclusive --description 'The daemon; default $STREAMD_ENDPOINT, then this host\'s'
complete --command streamd --condition "_streamd_at ' show'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' probe' 0" --arguments '(_streamd_streams)'
complete --command streamd --condition "_streamd_at ' probe'" --long-option endpoint --exclusive --description 'The daemon; default $STREAMD_ENDPOINT, then this host\'s'
complete --command streamd --condition "_streamd_at ' probe'" --long-option epochs --exclusive --description 'Epochs to drain'
complete --command streamd --condition "_streamd_at ' probe'" --long-option trainers --exclusive --description 'Trainer processes at a time'
complete --command streamd --condition "_streamd_at ' probe'" --long-option headroom --description 'Also replay held batches: the rate if data were free'
complete --command streamd --condition "_streamd_at ' probe'" --long-option load --exclusive --description 'Your function, called with each batch, such as a training step'
complete --command streamd --condition "_streamd_at ' probe'" --long-option digest --description 'Digest order, ids, labels and pixels'
complete --command streamd --condition "_streamd_at ' probe'" --long-option json --description 'Print one JSON object on standard output'
complete --command streamd --condition "_streamd_at ' probe'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' pack' 0" --arguments '(_streamd_streams)'
complete --command streamd --condition "_streamd_at ' pack' 1" --force-files
complete --command streamd --condition "_streamd_at ' pack'" --long-option format --exclusive --arguments 'npy tar hdf5 lmdb' --description 'What to write'
complete --command streamd --condition "_streamd_at ' pack'" --long-option config --require-parameter --force-files --description 'The configuration'
complete --command streamd --condition "_streamd_at ' pack'" --long-option shuffle --description 'In one global order, mixed by the stream\'s seed; else in stored order'
complete --command streamd --condition "_streamd_at ' pack'" --long-option shard --exclusive --description 'How large a file may become; default 4GiB, tar 1GiB'
complete --command streamd --condition "_streamd_at ' pack'" --long-option restart --description 'Throw away what an earlier run has begun'
complete --command streamd --condition "_streamd_at ' pack'" --long-option json --description 'Print one JSON object on standard output'
complete --command streamd --condition "_streamd_at ' pack'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' schema'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' completion' 0" --arguments 'bash zsh fish'
complete --command streamd --condition "_streamd_at ' completion'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' demo'" --long-option quick --description 'A smaller set and fewer epochs: under a minute'
complete --command streamd --condition "_streamd_at ' demo'" --long-option output --exclusive --arguments '(__fish_complete_directories)' --description 'Where the model, the chart and the receipts go'
complete --command streamd --condition "_streamd_at ' demo'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' service' 0" --arguments install --description 'Installs units, users and a first configuration, or brings them up to date'
complete --command streamd --condition "_streamd_at ' service' 0" --arguments remove --description 'Stops the services and takes away what was installed; configuration, state, caches and users stay'
complete --command streamd --condition "_streamd_at ' service'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' service install'" --long-option help --description 'Show this message and exit'
complete --command streamd --condition "_streamd_at ' service remove'" --long-option help --description 'Show this message and exit'
